"""Steps of the same samples whatever the number of workers, through losses in the middle of a step."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from tests.torch.elastic_world import Death, world
from tests.torch.global_batch_training import MICRO_BATCH, SAMPLES, SIZE, STEPS, Kind, Trained, samples_of

PLAIN = Kind()


@functools.cache
def undisturbed(kind: Kind, size: int) -> tuple[Trained, ...]:
    with world(kind) as one:
        one.form(one.start(*[None] * size))
        return tuple(one.finish())


def resized(kind: Kind) -> list[Trained]:
    """4 workers, then 3, 1, 2 and 3: by losses, and by an agreement of all members."""
    with world(kind, gate_at=7) as one:
        one.form(one.start(None, Death(6, "micro-batch 0"), Death(3, "micro-batch 1"), Death(1, "micro-batch 2")))
        one.form(one.await_death())
        one.form(one.await_death())
        one.form([*one.await_death(), *one.start(None)])
        one.form([*one.interrupt(), *one.start(None)])
        return one.finish()


def assert_as(found: list[Trained], expected: Trained, tolerance: float) -> None:
    for one in found:
        assert one.parameters == pytest.approx(expected.parameters, rel=tolerance, abs=tolerance * 1e-2)


KINDS = {
    "plain": PLAIN,
    "ignored labels": Kind(ignored=True),
    "clipping": Kind(clipped=True),
    "ignored labels and clipping": Kind(ignored=True, clipped=True),
    "loader with processes": Kind(workers=2),
}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_number_of_workers_trains_the_same(kind: Kind, size: int) -> None:
    (alone,) = undisturbed(kind, 1)
    found = undisturbed(kind, size)
    assert_as(list(found), alone, 1e-10)
    for step in range(STEPS):
        assert samples_of(step, found) == samples_of(step, [alone])
        assert len(samples_of(step, found)) == (SIZE if step % 5 < 4 else SAMPLES % SIZE)
        for one in found:
            assert one.losses[step] == pytest.approx(alone.losses[step], rel=1e-12)


# This world takes a worker for dead once its stream has ended, which a loader's processes inherit.
@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if not kind.workers], ids=str)
def test_losses_and_resizes_change_nothing(kind: Kind) -> None:
    (alone,) = undisturbed(kind, 1)
    assert_as(resized(kind), alone, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ignored", [False, True], ids=["plain", "ignored labels"])
def test_a_fixed_order_of_summation_gives_equal_bits(dtype: torch.dtype, ignored: bool) -> None:
    kind = Kind(bitwise=True, dtype=dtype, ignored=ignored)
    (alone,) = undisturbed(kind, 1)
    for size in (2, 3, 4):
        for one in undisturbed(kind, size):
            assert one.parameters == alone.parameters
            assert one.losses == alone.losses
    for one in resized(kind):
        assert one.parameters == alone.parameters


def test_without_a_fixed_order_bits_differ() -> None:
    """Else the test above would show nothing."""
    kind = Kind(dtype=torch.float32)
    (alone,) = undisturbed(kind, 1)
    assert undisturbed(kind, 3)[0].parameters != alone.parameters


@pytest.mark.parametrize("kind", [PLAIN, Kind(ignored=True), Kind(bitwise=True)], ids=["plain", "ignored", "bitwise"])
def test_a_loss_between_micro_batches_costs_what_the_lost_worker_had_computed(kind: Kind) -> None:
    lossy = dataclasses.replace(kind, lost_at=(2, 1))
    with world(lossy) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form(one.await_death())
        first, second = one.finish()
    (alone,) = undisturbed(kind, 1)
    assert_as([first, second], alone, 1e-10)
    computed = [numbers for trained in (first, second) for step, numbers in trained.computed if step == 2]
    # Of 12 micro-batches these two had computed 2 each: the other 8 follow, none of them twice.
    assert len(computed) == 12
    assert len({number for numbers in computed for number in numbers}) == 12 * MICRO_BATCH == SIZE


def test_two_losses_in_one_step() -> None:
    kind = Kind(lost_at=(2, 0))
    with world(kind) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2"), Death(2, "micro-batch 1")))
        one.form(one.await_death())
        one.form(one.await_death())
        found = one.finish()
    (alone,) = undisturbed(PLAIN, 1)
    assert_as(found, alone, 1e-10)


def test_a_newcomer_takes_a_share_of_the_step_that_was_interrupted() -> None:
    kind = Kind(lost_at=(2, 1))
    with world(kind) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form([*one.await_death(), *one.start(None, None)])
        found = one.finish()
    (alone,) = undisturbed(PLAIN, 1)
    assert_as(found, alone, 1e-10)
    computed = [numbers for trained in found for step, numbers in trained.computed if step == 2]
    assert len(computed) == 12
    assert [sum(step == 2 for step, _ in trained.computed) for trained in found] == [4, 4, 2, 2]


def test_a_loss_in_the_reduction_begins_the_step_anew() -> None:
    """The gradients of some members may have been reduced already, so none of them count."""
    with world(PLAIN) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 3")))  # the last of each worker
        one.form(one.await_death())
        found = one.finish()
    (alone,) = undisturbed(PLAIN, 1)
    assert_as(found, alone, 1e-10)


def test_more_workers_than_micro_batches() -> None:
    kind = dataclasses.replace(PLAIN, size=8)
    (alone,) = undisturbed(kind, 1)
    assert_as(list(undisturbed(kind, 4)), alone, 1e-10)
