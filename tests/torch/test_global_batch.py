"""Steps of the same samples whatever the number of workers, through losses in the middle of a step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

import edriver
from edriver.model.ids import RoundId, Version
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.accumulation.global_batch import refuse_dimensions
from edriver.worker.accumulation.gradients import Gradients
from edriver.worker.accumulation.unfinished import Unfinished, UnfinishedSteps
from edriver.worker.reports import SamplesDone
from tests.torch.elastic_world import Death, Script, world
from tests.torch.global_batch_training import (
    MICRO_BATCH,
    SAMPLES,
    SIZE,
    STEPS,
    Kind,
    Trained,
    by_hand,
    in_a_wrapper,
    samples_of,
    sharded,
    under_horovod,
)
from tests.torch.ranks import run_ranks

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
    "BatchNorm": Kind(normed=True),
    "stream": Kind(streamed=True),
    "stream, ignored labels": Kind(streamed=True, ignored=True),
    "stream with processes": Kind(streamed=True, workers=2),
}


# With a loader of processes each worker has a server for them, which imports torch: three workers are enough.
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(kind, size, id=f"{name}-{size}", marks=[pytest.mark.long] if kind.workers and size != 3 else [])
        for name, kind in KINDS.items()
        for size in ((1, 2, 3, 4) if kind.workers else (2, 3, 4))
    ],
)
def test_any_number_of_workers_trains_the_same(kind: Kind, size: int) -> None:
    (alone,) = undisturbed(dataclasses.replace(kind, workers=0), 1)
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


@pytest.mark.parametrize(
    "kind",
    [
        Kind(dtype=torch.float32),
        Kind(dtype=torch.float32, ignored=True),
        Kind(dtype=torch.bfloat16),
        Kind(dtype=torch.bfloat16, ignored=True),
        Kind(dtype=torch.float32, streamed=True),
        Kind(dtype=torch.float32, normed=True),
    ],
    ids=["plain", "ignored labels", "bfloat16", "bfloat16, ignored labels", "stream", "BatchNorm"],
)
def test_a_fixed_order_of_summation_gives_equal_bits(kind: Kind) -> None:
    kind = dataclasses.replace(kind, bitwise=True)
    (alone,) = undisturbed(kind, 1)
    for size in (2, 3, 4):
        for one in undisturbed(kind, size):
            assert one.parameters == alone.parameters
            assert one.losses == alone.losses
    for one in resized(kind):
        assert one.parameters == alone.parameters


def test_200_steps_agree_and_have_equal_bits_with_a_fixed_order_of_summation() -> None:
    kind = Kind(dtype=torch.float32, steps=200, size=4 * MICRO_BATCH)
    expected = torch.tensor(undisturbed(kind, 4)[0].parameters)
    for size in (3, 2, 1):
        difference = torch.tensor(undisturbed(kind, size)[0].parameters) - expected
        assert 0 < difference.norm() <= 1e-5 * expected.norm(), "with equal bits the rest would show nothing"
    kind = dataclasses.replace(kind, bitwise=True)
    bits = {tuple(undisturbed(kind, size)[0].parameters) for size in (4, 3, 2, 1)}
    assert len(bits) == 1


@pytest.mark.parametrize(
    "kind",
    [PLAIN, Kind(ignored=True), Kind(bitwise=True), Kind(streamed=True), Kind(normed=True)],
    ids=["plain", "ignored", "bitwise", "stream", "BatchNorm"],
)
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


@pytest.mark.parametrize("streamed", [False, True], ids=["sampler", "stream"])
def test_a_newcomer_takes_a_share_of_the_step_that_was_interrupted(streamed: bool) -> None:
    kind = Kind(lost_at=(2, 1), streamed=streamed)
    with world(kind) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form([*one.await_death(), *one.start(None, None)])
        found = one.finish()
    (alone,) = undisturbed(Kind(streamed=streamed), 1)
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


def test_with_a_fixed_order_of_summation_a_loss_before_the_reduction_costs_no_other_micro_batch() -> None:
    """The others wait in the reduction already, which has changed nothing of theirs."""
    kind = Kind(bitwise=True)
    with world(kind) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 3")))
        one.form(one.await_death())
        found = one.finish()
    (alone,) = undisturbed(kind, 1)
    assert all(trained.parameters == alone.parameters for trained in found)
    computed = [tuple(numbers) for trained in found for step, numbers in trained.computed if step == 2]
    assert len(computed) == len(set(computed)) == 12


@pytest.mark.parametrize("streamed", [False, True], ids=["sampler", "stream"])
def test_more_workers_than_micro_batches(streamed: bool) -> None:
    kind = Kind(size=8, streamed=streamed)
    (alone,) = undisturbed(kind, 1)
    assert_as(list(undisturbed(kind, 4)), alone, 1e-10)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_mixed_precision(size: int) -> None:
    """Micro-batches are computed alike; sums of gradients, in float32, are rounded in another order."""
    kind = Kind(mixed=True, dtype=torch.float32, ignored=True, clipped=True)
    (alone,) = undisturbed(kind, 1)
    assert_as(list(undisturbed(kind, size)), alone, 1e-4)


@pytest.mark.parametrize("ranks", [in_a_wrapper, under_horovod])
def test_a_step_is_that_of_the_mean_over_all_labels_that_count(ranks: Callable[[int], list[float]]) -> None:
    expected = by_hand()
    for found in run_ranks(ranks, 3):
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)


def quiet_replica(script: Script = sharded) -> list[Trained]:
    with world(script, replica_size=2) as one:
        one.form(one.start(None, None))
        return one.finish()


@pytest.mark.parametrize("streamed", [False, True], ids=["sampler", "stream"])
def test_replicas_of_a_sharded_model_share_a_step(streamed: bool) -> None:
    script = functools.partial(sharded, streamed=streamed)
    expected = quiet_replica(script)
    with world(script, replica_size=2) as one:
        one.form(one.start(*[None] * 6))
        found = one.finish()
    for rank, trained in enumerate(found):
        assert_as([trained], expected[rank % 2], 1e-10)
        assert trained.losses == pytest.approx(expected[0].losses)
    for step in range(STEPS):
        assert samples_of(step, found) == samples_of(step, expected)


def test_a_replica_of_a_sharded_model_is_lost_inside_a_step() -> None:
    expected = quiet_replica()
    with world(sharded, replica_size=2) as one:
        workers = one.start(None, None, None, Death(3, "micro-batch 1"))
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1]])
        for trained, position in zip(one.finish(), expected, strict=True):
            assert_as([trained], position, 1e-10)


def loader_of(sampler: object, batch_size: int | None = 4) -> DataLoader[object]:
    return DataLoader(range(24), batch_size, sampler=sampler)  # type: ignore[arg-type]


def test_misuse_is_named() -> None:
    model, sampler = torch.nn.Linear(1, 1), edriver.ElasticSampler(range(24), shuffle=False)
    with pytest.raises(ValueError, match=r"a step of 10 samples .* micro-batches of 4, .* such as size=8"):
        edriver.GlobalBatch(loader_of(sampler), model, size=10)
    with pytest.raises(TypeError, match=r"a loader that has an edriver\.ElasticSampler.* has a SequentialSampler"):
        edriver.GlobalBatch(DataLoader(range(24), 4), model, size=8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="this one has a batch size of None"):
        edriver.GlobalBatch(loader_of(sampler, None), model, size=8)
    steps = edriver.GlobalBatch(loader_of(sampler), model, size=8)
    assert len(steps) == 3
    step = next(iter(steps))
    loss = torch.ones((), requires_grad=True)
    with pytest.raises(RuntimeError, match="inside the loop over the step"):
        step.scale(loss)
    with pytest.raises(RuntimeError, match="known after the loop"):
        step.loss()
    batches = iter(step)
    assert next(batches).tolist() == [0, 1, 2, 3]
    step.scale(loss)
    with pytest.raises(RuntimeError, match="once for each micro-batch"):
        step.scale(loss)
    assert next(batches).tolist() == [4, 5, 6, 7]
    with pytest.raises(RuntimeError, match=r"without step\.scale"):
        next(batches)
    with pytest.raises(RuntimeError, match="leave the call of record_batch out"):
        sampler.record_batch(0, 4)
    streamed = edriver.ElasticStream(["a"], lambda _: iter(range(24))).loader(4)
    with pytest.raises(ValueError, match=r'shares="speed" would move shards .* leave shares at "even"'):
        edriver.GlobalBatch(streamed, model, size=8, shares="speed")
    with pytest.raises(TypeError, match="the length of a stream is not known"):
        len(edriver.GlobalBatch(streamed, model, size=8))
    with pytest.raises(TypeError, match=r"SyncBatchNorm normalizes by .* use BatchNorm"):
        edriver.GlobalBatch(streamed, torch.nn.SyncBatchNorm(2), size=8)
    left = iter(edriver.GlobalBatch(loader_of(sampler), model, size=8))
    next(left)
    with pytest.raises(RuntimeError, match="left before its last micro-batch"):
        next(left)


class Rounds:
    """Of a worker that has come to a version."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def check(self) -> None:
        pass


@pytest.mark.parametrize(
    ("boundaries", "samples", "done"),
    [(3, 8, [[0, 2]]), (2, 8, [[]]), (4, 8, [[]]), (3, 0, [[]]), (3, 16, [[]])],
)
def test_what_a_worker_has_counts_only_if_the_round_goes_on_with_its_step(
    monkeypatch: pytest.MonkeyPatch, boundaries: int, samples: int, done: list[list[int]]
) -> None:
    sampler, steps = edriver.ElasticSampler(range(24)), UnfinishedSteps()
    gradients = Gradients([torch.nn.Linear(1, 1, bias=False)], with_others=False)
    begins_at = SamplesDone(0, samples, 24)
    steps.keep(sampler, Unfinished(Version(RoundId(1, 1), 3), begins_at, 1.0, [0, 2], [None], {}, {}, {}, {}))
    sampler.load_state_dict({"epoch": 0, "seed": 0, "offset": 8})
    monkeypatch.setattr(context.current, "rounds", Rounds(Version(RoundId(1, 1), boundaries)))
    place = dataclasses.replace(SINGLE_WORKER, round_id=RoundId(1, 2))
    with context.current.place.rehearsing(place):
        found = steps.taken_up(sampler, 4, gradients)
        assert found.done == done
        assert (found.own is not None) == bool(done[0])
        assert steps.taken_up(sampler, 4, gradients).own is None, "once"


def test_a_model_that_is_not_wrapped_is_refused_where_others_train() -> None:
    place = dataclasses.replace(SINGLE_WORKER, size=2)
    with context.current.place.rehearsing(place), pytest.raises(TypeError, match="this Linear is not wrapped"):
        edriver.GlobalBatch(loader_of(edriver.ElasticSampler(range(24))), torch.nn.Linear(1, 1), size=8)


def test_workers_that_compute_with_the_same_samples_are_refused() -> None:
    refuse_dimensions(("replicate", "shard"))
    with pytest.raises(TypeError, match="workers along tensor of this mesh compute with the same"):
        refuse_dimensions(("replicate", "shard", "tensor"))


def test_drop_last_leaves_out_a_step_of_fewer_samples() -> None:
    loader = DataLoader(range(24), 4, sampler=edriver.ElasticSampler(range(24)), drop_last=True)  # type: ignore[arg-type,var-annotated]
    assert len(edriver.GlobalBatch(loader, torch.nn.Linear(1, 1), size=20)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 20])
def test_scripts_that_accumulate_by_themselves_have_weights(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    all_of_them = []
    for rank in range(size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        weights = edriver.accumulation_weights(global_batch=256, micro_batch=16)
        assert len(weights) == edriver.accumulation_steps(256, 16) == -(-16 // size)
        all_of_them += weights
    assert sum(all_of_them) / size == pytest.approx(1.0)  # as a mean over workers
    assert len([weight for weight in all_of_them if weight]) == 16
    with pytest.raises(ValueError, match="a step of 250 samples cannot be cut into micro-batches of 16"):
        edriver.accumulation_steps(250, 16)


@pytest.mark.parametrize("workers", [0, 2])
def test_shares_follow_speed(workers: int) -> None:
    """Measured in step 8 of a call; a loader with processes has read up to four steps ahead."""
    kind = Kind(paces=(0.1, 0.1, 0.4), workers=workers, length=15 * SIZE, steps=15)
    (alone,) = undisturbed(dataclasses.replace(kind, paces=(0.1,), workers=0), 1)
    found = undisturbed(kind, 3)
    assert_as(list(found), alone, 1e-10)
    for step in range(15):
        assert samples_of(step, found) == samples_of(step, [alone])
        counts = [sum(at == step for at, _ in trained.computed) for trained in found]
        assert counts == ([4, 4, 4] if step < (9 if not workers else 13) else [6, 5, 1])
