"""A stream's plan, blocks and positions: what each worker reads, hands out, and has done."""

from __future__ import annotations

import json

import pytest

from edriver.worker.sampler.step_schedule import StepSchedule
from edriver.worker.sampler.stream_block import MAX_STEPS, BatchPart, Block, batches_of
from edriver.worker.sampler.stream_plan import ShardPlan, cut, samples_in
from edriver.worker.sampler.stream_schedule import EpochSchedule, Position, ReadReport, StreamSettings
from edriver.worker.sampler.stream_shards import EpochProgress, Piece, ReadRange, shard_order


def progress_of(shards: int, done: list[Piece], lengths: dict[int, int]) -> EpochProgress:
    progress = EpochProgress(shards)
    for piece in done:
        progress.take(piece)
    for shard, length in lengths.items():
        progress.learn(shard, length)
    return progress


def test_intervals_merge_and_gaps_are_left() -> None:
    progress = progress_of(1, [Piece(0, 0, 3), Piece(0, 6, 8), Piece(0, 3, 4)], {})
    assert progress.left(0) == [(4, 6), (8, None)]
    progress.learn(0, 10)
    assert progress.left(0) == [(4, 6), (8, 10)]
    assert list(progress.left_of(Piece(0, 5, 9))) == [Piece(0, 5, 6), Piece(0, 8, 9)]
    assert progress.samples_done() == 6


def test_a_state_says_the_same_as_json_too() -> None:
    progress = progress_of(5, [Piece(0, 0, 4), Piece(1, 0, 2), Piece(1, 5, 6)], {0: 4, 3: 0, 4: 9})
    progress.readers[1] = (2, '{"at": 2}')
    state = json.loads(json.dumps(progress.state()))
    again = EpochProgress.of_state(state, 5)
    assert [again.left(shard) for shard in range(5)] == [progress.left(shard) for shard in range(5)]
    assert (again.lengths, again.readers) == (progress.lengths, progress.readers)
    with pytest.raises(ValueError, match="the stream's state has 5 shards, but there are 4 here"):
        EpochProgress.of_state(state, 4)


@pytest.mark.parametrize("length", [3, 9])
def test_a_shard_that_has_another_length_is_refused(length: int) -> None:
    progress = progress_of(1, [Piece(0, 0, 8)], {} if length == 3 else {0: 8})
    with pytest.raises(ValueError, match="it must have the same samples in the same order"):
        progress.learn(0, length)


def test_orders_are_permutations_that_differ_by_seed_and_epoch() -> None:
    orders = {tuple(shard_order(50, True, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert shard_order(3, False, 0, 0) == [0, 1, 2]


def test_chunks_of_a_shared_shard_go_round() -> None:
    runs = [list(ReadRange(0, 5, 14, 4, 3, member, 2).runs()) for member in range(2)]
    assert runs == [[Piece(0, 5, 7), Piece(0, 10, 13)], [Piece(0, 7, 10), Piece(0, 13, 14)]]


def test_a_worker_without_shards_gets_half_of_anothers_and_then_joins_in() -> None:
    plan, progress = ShardPlan([0, 1, 2, 3, 4, 5], 2, 4), progress_of(6, [], {1: 0, 3: 0, 5: 0})
    assert plan.balance(progress)
    assert [[part.shard for part in plan.ranges(rank, progress)] for rank in range(2)] == [[0, 2], [4]]
    for shard in (2, 4):
        progress.learn(shard, 0)
    assert not plan.balance(progress), "no worker has two"
    assert plan.share(progress)
    assert [plan.ranges(rank, progress) for rank in range(2)] == [
        [ReadRange(0, 0, None, 0, 4, member, 2)] for member in range(2)
    ]
    progress.learn(0, 10)
    assert not plan.share(progress)


def test_samples_are_moved_once_all_lengths_are_known_and_repeated_in_the_last_row() -> None:
    progress = progress_of(2, [], {0: 9, 1: 2})
    plan = ShardPlan([0, 1], 3, 2)
    plan.move(progress, 2)
    held = [[Piece(*part[:2], part.stop or 0) for part in plan.ranges(rank, progress)] for rank in range(3)]
    assert all(samples_in(pieces) >= 2 for pieces in held)
    assert sorted((p.shard, n) for pieces in held for p in pieces for n in range(p.start, p.stop)) == [
        *((0, n) for n in range(9)),
        *((1, n) for n in range(2)),
    ]
    plan.move(progress, 4)
    plan.pad(4)
    assert [sum((part.stop or 0) - part.start for part in plan.padded(rank)) for rank in range(3)] == [4, 4, 4]


def test_cut_takes_from_the_front() -> None:
    pieces = [Piece(0, 0, 3), Piece(1, 0, 3)]
    assert cut(pieces, 4) == [Piece(0, 0, 3), Piece(1, 0, 1)]
    assert pieces == [Piece(1, 1, 3)]
    assert samples_in(cut(pieces, 9)) == 2


def test_lanes_take_turns_and_put_their_rests_together() -> None:
    batches = batches_of([[Piece(0, 0, 5)], [Piece(1, 0, 3)]], 2)
    assert batches == [
        [BatchPart(0, [Piece(0, 0, 2)])],
        [BatchPart(1, [Piece(1, 0, 2)])],
        [BatchPart(0, [Piece(0, 2, 4)])],
        [BatchPart(1, [Piece(1, 2, 3)]), BatchPart(0, [Piece(0, 4, 5)])],
    ]
    assert len(batches_of([[Piece(0, 0, 999)]], 1)) == MAX_STEPS


def test_a_block_has_as_many_steps_as_the_worker_with_the_fewest() -> None:
    block = Block(EpochProgress(2), [batches_of([[Piece(0, 0, 6)]], 2), batches_of([[Piece(1, 0, 4)]], 2)])
    assert (block.steps, len(block.of(0))) == (2, 2)
    assert [block.after(steps).samples_done() for steps in (2, 0, 1)] == [8, 0, 4]


TERMS = StreamSettings(epoch=0, seed=0, shuffle=False, shards=1, batch_size=4, drop_last=True)


def test_a_report_arrives_as_it_was() -> None:
    report = ReadReport(TERMS, [[Piece(0, 0, 4)], []], {0: 4}, {0: (2, "{}")})
    assert ReadReport.of(report.text()) == report


def test_workers_that_disagree_are_refused() -> None:
    courses = [EpochSchedule(EpochProgress(1), [0], rank, 2, TERMS._replace(batch_size=4 + rank)) for rank in range(2)]
    with pytest.raises(ValueError, match="rank 1 iterates a stream with batch_size 5, and rank 0 one with 4"):
        courses[0].agree([schedule.report([[]], {}, {}) for schedule in courses])


def test_of_several_readers_of_a_shard_the_one_behind_counts() -> None:
    courses = [EpochSchedule(EpochProgress(1), [0], rank, 2, TERMS) for rank in range(2)]
    readers = [{0: (8, "b")}, {0: (4, "a")}]
    courses[0].agree([schedule.report([[]], {}, mine) for schedule, mine in zip(courses, readers, strict=True)])
    assert courses[0].progress().readers == {0: (4, "a")}


def test_what_drop_last_leaves_is_counted() -> None:
    schedule = EpochSchedule(EpochProgress(1), [0], 0, 1, TERMS)
    schedule.agree([schedule.report([[Piece(0, 0, 3)]], {0: 3}, {})])
    assert (schedule.finished, schedule.dropped, schedule.batches()) == (True, 3, [])


def test_those_with_the_same_share_have_to_read_the_same() -> None:
    schedule = EpochSchedule(EpochProgress(1), [0], 0, 1, TERMS, [0, 0])
    reports = [ReadReport(TERMS, [[Piece(0, 0, held)]], {}, {}).text() for held in (4, 3)]
    with pytest.raises(ValueError, match="ranks 0 and 1 compute steps together, so they need the same samples"):
        schedule.agree(reports)
    schedule.agree(reports[:1] * 2)
    assert len(schedule.batches()) == 4 // TERMS.batch_size


def test_workers_whose_steps_have_other_sizes_are_refused() -> None:
    schedules = [
        StepSchedule(Position.of(EpochProgress(1)), [0], rank, [[0], [1]], TERMS._replace(micro_batches=2 + rank))
        for rank in range(2)
    ]
    reports = [schedule.report([[]], {}, {}) for schedule in schedules]
    with pytest.raises(ValueError, match="rank 1 iterates a stream with micro_batches 3, and rank 0 one with 2"):
        schedules[0].agree(reports)
