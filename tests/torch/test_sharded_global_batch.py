"""Replicas of a sharded model that lose a worker inside a step of GlobalBatch, at each phase of it.

Steps have 12 micro-batches: with four workers each has three, and the third reduces gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from edriver.model.ids import RoundId, Version
from edriver.model.plan import SINGLE_WORKER
from edriver.model.shards import NO_SHARDING
from edriver.worker.accumulation.unfinished import each_once
from edriver.worker.backend.gloo.cutting import Cut
from edriver.worker.context import MicroBatch
from edriver.worker.rounds import severing
from edriver.worker.rounds.group import Group
from edriver.worker.rounds.participant import Participant, Stage
from edriver.worker.rounds.severing import Severing
from tests.torch.elastic_world import Death, World, world
from tests.torch.global_batch_training import LOST_AT, MICRO_BATCH, SIZE, Trained, sharded
from tests.waiting import until

Pauses = tuple[tuple[int, str], ...]


@functools.cache
def undisturbed(streamed: bool = False) -> tuple[Trained, ...]:
    """What the two positions of a replica end with."""
    with world(functools.partial(sharded, streamed=streamed), replica_size=2) as one:
        one.form(one.start(None, None))
        return tuple(one.finish())


def assert_trained_the_same(found: Sequence[Trained], streamed: bool = False) -> None:
    for rank, trained in enumerate(found):
        expected = undisturbed(streamed)[rank % 2]
        assert trained.parameters == pytest.approx(expected.parameters, rel=1e-10, abs=1e-12)


def computed(found: Sequence[Trained]) -> list[list[tuple[int, ...]]]:
    """For each of these workers, the samples of each micro-batch that it has begun to compute in step LOST_AT."""
    return [[tuple(numbers) for step, numbers in trained.computed if step == LOST_AT] for trained in found]


def assert_each_once(found: Sequence[Trained]) -> None:
    """Each micro-batch of the step was computed by one of these workers, once."""
    together = [micro_batch for own in computed(found) for micro_batch in own]
    assert len(together) == SIZE // MICRO_BATCH
    assert sorted(number for micro_batch in together for number in micro_batch) == sorted(
        number for own in computed(undisturbed()) for micro_batch in own for number in micro_batch
    )


def lose(one: World, *deaths: Death | None) -> list[Trained]:
    """Lose a worker of the last replica; the others train on."""
    workers = one.start(*deaths)
    one.form(workers)
    one.await_death()
    one.form(workers[:-2])
    return one.finish()


@pytest.mark.parametrize(
    ("death", "pauses"),
    [
        ("forward 1", ((0, "forward 1"), (1, "forward 1"))),
        ("backward 1", ((0, "backward 1"), (1, "backward 1"))),
        ("micro-batch 1", ((0, "backward 1"), (1, "computed 1"))),
        ("micro-batch 2", ((0, "micro-batch 1"), (1, "forward 0"))),
        ("backward 2", ((0, "forward 1"), (1, "backward 0"))),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_whole_replica_computes_nothing_twice(death: str, pauses: Pauses) -> None:
    """It learns of the loss at these places, of which some come before parameters are gathered."""
    with world(functools.partial(sharded, pauses=pauses), replica_size=2) as one:
        found = lose(one, None, None, None, Death(LOST_AT, death))
        assert one.from_versions[1] == Version(RoundId(1, 1), LOST_AT)
    assert_trained_the_same(found)
    assert_each_once(found)


@pytest.mark.parametrize(
    "pauses",
    [((0, "micro-batch 1"), (1, "computed 0")), ((1, "computed 0"),)],
    ids=["before it gathers", "in a collective"],
)
def test_one_that_is_ahead_of_its_replica_stops_where_it_needs_the_others(pauses: Pauses) -> None:
    with world(functools.partial(sharded, pauses=pauses), replica_size=2) as one:
        found = lose(one, None, None, None, Death(LOST_AT, "forward 1"))
    assert_trained_the_same(found)
    ahead, behind = computed(found)
    assert ahead[0] not in [*ahead[1:], *behind]
    assert behind[0] not in [*ahead, *behind[1:]]


@pytest.mark.parametrize("streamed", [False, True], ids=["sampler", "stream"])
def test_newcomers_take_their_shares_of_the_rest(streamed: bool) -> None:
    pauses = (0, "backward 1"), (1, "forward 1")
    with world(functools.partial(sharded, streamed=streamed, pauses=pauses), replica_size=2) as one:
        workers = one.start(None, None, None, Death(LOST_AT, "forward 1"))
        one.form(workers)
        one.await_death()
        one.form([*workers[:2], *one.start(None, None)])
        found = one.finish()
    assert_trained_the_same(found, streamed)
    assert [len(own) for own in computed(found)] == [4, 4, 2, 2]
    assert len({micro_batch for own in computed(found) for micro_batch in own}) == 12


def test_two_whole_replicas_of_three() -> None:
    """Of 12 micro-batches each of six workers has two."""
    pauses = tuple((rank, "backward 0") for rank in range(4))
    with world(functools.partial(sharded, pauses=pauses), replica_size=2) as one:
        found = lose(one, *[None] * 5, Death(LOST_AT, "backward 0"))
    assert_trained_the_same(found)
    assert_each_once(found)


def test_a_loss_in_the_forward_pass_that_reduction_follows_costs_no_other_micro_batch() -> None:
    pauses = (0, "forward 2"), (1, "forward 2")
    with world(functools.partial(sharded, pauses=pauses), replica_size=2) as one:
        found = lose(one, None, None, None, Death(LOST_AT, "forward 2"))
    assert_trained_the_same(found)
    for own in computed(found):
        assert len(own) == 3 + 4
        assert own[:2] == list(dict.fromkeys(own))[:2]
        assert set(own[:2]).isdisjoint(own[2:])


@pytest.mark.parametrize("place", ["backward 2", "before the seal"])
def test_a_loss_in_the_reduction_begins_the_step_anew(place: str) -> None:
    """Gradients of some members may have been reduced already, so none of them count."""
    pauses = (0, "backward 2"), (1, "backward 2")
    paused = functools.partial(sharded, pauses=pauses if place == "backward 2" else ())
    with world(paused, replica_size=2) as one:
        found = lose(one, None, None, None, Death(LOST_AT, place))
        assert one.from_versions[1] == Version(RoundId(1, 1), LOST_AT)
    assert_trained_the_same(found)
    assert [len(own) for own in computed(found)] == [3 + 6, 3 + 6]


def test_the_replica_that_finishes_loses_a_worker_too() -> None:
    """In a backward pass, with parameters still to be gathered from it: the other one has half of a gradient."""
    pauses = (0, "backward 1"), (1, "backward 1")
    deaths = Death(LOST_AT, "backward 1"), None, None, Death(LOST_AT, "forward 1")
    with world(functools.partial(sharded, pauses=pauses), replica_size=2) as one:
        workers = one.start(*deaths)
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1]])  # once these wait, the other one of the replica that was whole is dead
        found = one.finish()
    assert_trained_the_same(found)


def test_the_lost_workers_peer_keeps_what_it_has(tmp_path: Path) -> None:
    """It breaks off in a forward pass, for which it needs the lost one, or between two micro-batches."""
    pauses = (0, "computed 0"), (1, "computed 0")
    with world(functools.partial(sharded, pauses=pauses, paused=tmp_path), replica_size=2) as one:
        workers = one.start(None, None, None, Death(LOST_AT, "micro-batch 1"))
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1]])
        found = one.finish()
    assert_trained_the_same(found)
    first, second = computed(found)
    assert second[0] not in second[1:]
    assert first[0] not in [*first[1:], *second]


def test_what_a_worker_has_does_not_count_if_others_have_computed_it_again_without_it(
    tmp_path: Path,
) -> None:
    """Worker 0 waits while a round without it makes another attempt at the step, and is in the one after that."""
    pauses = (0, "computed 1"), (1, "computed 1")
    deaths = None, None, Death(LOST_AT, "micro-batch 4"), Death(LOST_AT, "forward 0")
    with world(functools.partial(sharded, pauses=pauses, paused=tmp_path), replica_size=2) as one:
        workers = one.start(*deaths)
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1]])  # worker 1 has two micro-batches, and computes one of worker 0's
        one.await_death()
        one.form(workers[:2])
        found = one.finish()
        assert one.from_versions[1:] == [Version(RoundId(1, 1), LOST_AT)] * 2
    assert_trained_the_same(found)
    first, second = computed(found)
    assert set(first[:2]) & set(second), "or the test shows nothing"


@pytest.mark.parametrize(
    ("done", "counts"),
    [
        ([[0, 1], [2]], [[0, 1], [2]]),
        ([[0], [0, 1]], [(), [0, 1]]),
        ([[0, 1], [1, 2]], [[0, 1], ()]),
        ([[0], [], [0, 1], [1, 2, 3]], [[0], [], (), [1, 2, 3]]),
    ],
)
def test_no_micro_batch_counts_twice(done: list[list[int]], counts: list[Sequence[int]]) -> None:
    assert each_once(done) == counts


class Connections:
    """A group that notes how it is severed."""

    gloo_only = True

    def __init__(self) -> None:
        self.spared: list[bool] = []

    def sever(self, round_id: RoundId, spare_replica: bool = False) -> Cut:
        del round_id
        self.spared.append(spare_replica)
        return Cut(0, 0)


@pytest.mark.parametrize(("whole", "bound"), [(True, 3600.0), (True, 0.0), (False, 3600.0)])
def test_only_a_whole_replica_is_spared_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, whole: bool, bound: float
) -> None:
    monkeypatch.setattr(severing, "FINISH_BOUND", bound)
    participant, group, micro_batch = Participant(), Connections(), MicroBatch()
    participant.stage, participant.round_id = Stage.ASSIGNED, RoundId(1, 1)
    micro_batch.open()
    micro_batch.begin()
    changed = threading.Condition()
    severs = Severing(participant, changed, micro_batch, cast(Group, group), lambda _: None)
    severs.begin(RoundId(1, 1), replica_is_whole=whole)
    assert group.spared[0] == whole
    until(lambda: len(group.spared) > 3, every=0.01)
    assert group.spared[3] == (bound > 0 and whole)
    micro_batch.end()
    until(lambda: not group.spared[-1], every=0.01)
    with changed:
        participant.stage = Stage.WAITING
        changed.notify_all()


def test_a_worker_knows_its_replica() -> None:
    place = dataclasses.replace(SINGLE_WORKER, rank=3, size=6, replica_size=2)
    assert [place.shares_replica(rank) for rank in range(6)] == [False, False, True, True, False, False]
    assert dataclasses.replace(place, sharding=NO_SHARDING).shares_replica(0), "all workers are one"


def test_a_worker_begins_a_micro_batch_only_if_it_can_be_finished() -> None:
    micro_batch, kept = MicroBatch(), Kept()
    micro_batch.begin()
    assert not micro_batch.is_finished, "it reduces gradients, or is none of a step's"
    micro_batch.open()
    assert not micro_batch.is_finished
    micro_batch.begin()
    assert micro_batch.is_finished
    micro_batch.keep_with(kept.keep)
    micro_batch.interrupted()
    micro_batch.interrupted()
    assert (kept.times, micro_batch.is_finished) == (1, False)
    micro_batch.keep_with(Kept().keep)
    micro_batch.interrupted()  # of one that is gone


class Kept:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def keep(self) -> None:
        self.times += 1
