"""ElasticAccelerator through kills, a shrink and a grow."""

from __future__ import annotations

import dataclasses
import functools

import pytest

import edriver
from edriver.model.ids import RoundId, Version
from tests.libraries.same_steps import OVERFLOWING, Accelerated
from tests.libraries.worlds import script
from tests.torch.elastic_world import GATE, Death, Script, ordeal, undisturbed, world
from tests.torch.global_batch_training import MICRO_BATCH, SAMPLES, SIZE, STEPS, Trained, samples_of

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]


def test_nothing_is_lost() -> None:
    accelerated = script("accelerated")
    expected = undisturbed(accelerated)
    with world(accelerated, GATE) as one:
        assert ordeal(one, 2) == [expected] * 2
        assert one.from_versions[1] == Version(RoundId(1, 1), 4), "the boundary before the step that was interrupted"
        assert one.from_versions[2] >= Version(RoundId(1, 2), 4), "or the one after it, if its gradients had arrived"


@pytest.mark.parametrize("name", ["loaders", "refusals", "outside"])
def test_what_a_script_may_ask_of_it(name: str) -> None:
    assert undisturbed(script(name)) is None


def steps_of(kind: Accelerated) -> Script:
    """Of this kind, with global_batch=True."""
    return script("accelerated", "global_batches", kind=kind)


@functools.cache
def quiet(kind: Accelerated, size: int) -> tuple[Trained, ...]:
    with world(steps_of(kind)) as one:
        one.form(one.start(*[None] * size))
        return tuple(one.finish())


def assert_as_by_hand(found: list[Trained], kind: Accelerated) -> None:
    expected = kind.by_hand()
    for one in found:
        assert one.parameters == pytest.approx(expected, rel=1e-9, abs=1e-11)


KINDS = {
    "sgd": Accelerated(adam=False),
    "adam": Accelerated(),
    "ignored labels and clipping": Accelerated(ignored=True, clipped=True),
    "scaled": Accelerated(scaled=True, clipped=True),
    "drop_last": Accelerated(drop_last=True),
    "zero_grad first": Accelerated(zero_first=True),
}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_step_has_the_same_samples_whatever_the_number_of_workers(kind: Accelerated, size: int) -> None:
    found = list(quiet(kind, size))
    assert_as_by_hand(found, kind)
    for step in range(STEPS):
        alone = quiet(kind, 1)[0]
        assert samples_of(step, found) == samples_of(step, [alone])
        for one in found:
            assert one.losses[step] == pytest.approx(alone.losses[step], rel=1e-12)
        assert sum(at == step for one in found for at, _ in one.computed) == -(
            -len(samples_of(step, found)) // MICRO_BATCH
        )


def test_losses_and_resizes_change_no_step() -> None:
    kind = Accelerated(clipped=True)
    with world(steps_of(kind), gate_at=7) as one:
        one.form(one.start(None, Death(3, "micro-batch 1"), Death(1, "micro-batch 2")))
        one.form(one.await_death())
        one.form([*one.await_death(), *one.start(None)])
        one.form([*one.interrupt(), *one.start(None)])
        found = one.finish()
    assert_as_by_hand(found, kind)
    for step in (8, 9):
        assert samples_of(step, found) == samples_of(step, list(quiet(kind, 1)))


@pytest.mark.parametrize("zero_first", [False, True])
def test_what_others_have_computed_of_a_step_is_not_computed_again(zero_first: bool) -> None:
    kind = Accelerated(ignored=True, zero_first=zero_first, lost_at=(2, 1))
    with world(steps_of(kind)) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form(one.await_death())
        found = one.finish()
    assert_as_by_hand(found, kind)
    computed = [numbers for trained in found for step, numbers in trained.computed if step == 2]
    assert len(computed) == SIZE // MICRO_BATCH
    assert len({number for numbers in computed for number in numbers}) == SIZE


def test_a_loss_after_a_step_that_was_skipped_leads_back_before_that() -> None:
    """A step that GradScaler skips has no boundary, so what others have of the next one does not follow the last."""
    skipped = list(edriver.ElasticSampler(range(SAMPLES), seed=5)).index(OVERFLOWING) // SIZE
    kind = Accelerated(scaled=True)
    with world(steps_of(dataclasses.replace(kind, lost_at=(skipped + 1, 1)))) as one:
        one.form(one.start(None, None, Death(skipped + 1, "micro-batch 2")))
        one.form(one.await_death())
        found = one.finish()
    assert_as_by_hand(found, kind)
    assert sum(step == skipped for trained in found for step, _ in trained.computed) > SIZE // MICRO_BATCH


@pytest.mark.parametrize("name", ["misuse", "left_in_the_middle"])
def test_a_loop_over_its_steps(name: str) -> None:
    assert undisturbed(script(name, "global_batches")) is None
