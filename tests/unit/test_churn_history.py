"""What `make churn` and `make bench` conclude from records: a check that cannot fail would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import EpochCount, History, count_epochs, faults
from benchmarks.records import Batch, Record, Recorder, RecordReader, RoundStart, StepDone
from benchmarks.schedule import MOST_WORKERS, schedule_of

SAMPLES = 8


def start(round_id: int, rank: int, size: int, step: int, digest: str = "", time: float = 0.0) -> RoundStart:
    return RoundStart(time, round_id, rank, size, 1000 + rank, "a", step, digest)


def trained(round_id: int, rank: int, step: int, *samples: int, digest: str = "", time: float = 0.0) -> list[Record]:
    batch = Batch(time, round_id, rank, 0, step, samples)
    return [batch, StepDone(time + 1.0, round_id, rank, step, digest)]


def history(*records: Record | list[Record]) -> History:
    found = History()
    for record in records:
        found.add(record if isinstance(record, list) else [record])
    return found


def two_rounds(first: list[Record], second: list[Record]) -> History:
    """Two workers train step 1 on 0 to 3; one of them goes on alone."""
    return history(
        [start(1, 0, 2, 0), start(1, 1, 2, 0)],
        [*trained(1, 0, 1, 0, 2), *trained(1, 1, 1, 1, 3)],
        first,
        [start(2, 0, 1, 1)],
        second,
    )


ALONE = [*trained(2, 0, 2, 4, 5), *trained(2, 0, 3, 6, 7)]


def test_a_lost_step_does_not_count_and_its_samples_are_not_repeated() -> None:
    found = two_rounds([*trained(1, 0, 2, 4, 6), Batch(0.0, 1, 1, 0, 2, (5, 7))], ALONE)

    assert faults(found, SAMPLES) == []
    assert found.steps_lost() == 1
    assert [(current.number, step) for current, step in found.counted()] == [(1, 1), (2, 2), (2, 3)]


def test_the_last_step_before_a_time_is_one_that_all_members_finished() -> None:
    found = history(
        [start(1, 0, 2, 0), start(1, 1, 2, 0)],
        [*trained(1, 0, 1, 0, 2, time=1.0), *trained(1, 1, 1, 1, 3, time=2.0)],
        trained(1, 0, 2, 4, 6, time=4.0),
        [start(2, 0, 1, 1, time=6.0)],
        trained(2, 0, 2, 4, 5, time=7.0),
    )

    assert found.last_completion(9.0, size=2) == 3.0
    assert found.last_completion(3.0, size=2) is None
    assert found.last_completion(9.0, size=1) == 8.0


def test_a_step_that_only_the_dead_had_finished_is_not_lost() -> None:
    found = two_rounds([*trained(1, 1, 2, 5, 7), Batch(0.0, 1, 0, 0, 2, (4, 6))], ALONE)

    assert faults(found, SAMPLES) == []
    assert found.steps_lost() == 0


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        pytest.param(trained(2, 0, 2, 4, 5), EpochCount(0, 2, 0), id="lost"),
        pytest.param([*trained(2, 0, 2, 4, 5, 3), *trained(2, 0, 3, 6, 7)], EpochCount(0, 0, 1), id="repeated"),
        pytest.param([*trained(2, 0, 2, 4, 5), *trained(2, 0, 3, 6, 7, 0)], EpochCount(0, 0, 1), id="one-pads-nothing"),
    ],
)
def test_samples_are_counted(second: list[Record], expected: EpochCount) -> None:
    assert count_epochs(two_rounds([], second), SAMPLES) == [expected]


def test_what_fills_the_last_row_is_not_a_repetition() -> None:
    whole = [*trained(1, 0, 1, 0, 2, 4, 6), *trained(1, 1, 1, 1, 3, 5, 0)]

    assert count_epochs(history([start(1, 0, 2, 0), start(1, 1, 2, 0)], whole), 7) == [EpochCount(0, 0, 0)]
    assert count_epochs(history([start(1, 0, 2, 0), start(1, 1, 2, 0)], whole), 6 + 2) == [EpochCount(0, 1, 0)]


def test_a_step_that_a_member_never_began_is_found() -> None:
    found = history([start(1, 0, 2, 0), start(1, 1, 2, 0)], trained(1, 0, 1, *range(SAMPLES)))

    assert faults(found, SAMPLES) == ["round 1, step 1: counts, but ranks [1] never began it"]


def test_an_epoch_that_was_left_out_is_found() -> None:
    steps = trained(1, 0, 1, *range(SAMPLES))
    steps += [Batch(0.0, 1, 0, 2, 2, tuple(range(SAMPLES))), StepDone(1.0, 1, 0, 2)]

    assert faults(history(start(1, 0, 1, 0), steps), SAMPLES) == ["round 1, step 2: epoch 2 follows epoch 0"]


@pytest.mark.parametrize(
    ("begun", "reached", "complaint"),
    [
        pytest.param(("x", "y"), "z", "round 2: its members began with different states", id="members-differ"),
        pytest.param(("y", "y"), "z", "round 2: began with another state of step 1", id="not-what-was-reached"),
    ],
)
def test_other_states_are_found(begun: tuple[str, str], reached: str, complaint: str) -> None:
    found = history(
        [start(1, 0, 1, 0)],
        trained(1, 0, 1, *range(SAMPLES), digest="x"),
        [start(2, 0, 2, 1, begun[0]), start(2, 1, 2, 1, begun[1])],
    )

    assert any(fault.startswith(complaint) for fault in faults(found, SAMPLES))


def test_members_that_reach_different_states_are_found() -> None:
    steps = [*trained(1, 0, 1, 0, 1, 2, 3, digest="x"), *trained(1, 1, 1, 4, 5, 6, 7, digest="y")]

    found = faults(history([start(1, 0, 2, 0), start(1, 1, 2, 0)], steps), SAMPLES)

    assert found == ["round 1, step 1: its members reached different states: ['x', 'y']"]


def test_times_are_taken_from_the_members_of_later_rounds() -> None:
    found = history(
        [start(1, 0, 2, 0, time=1.0), start(1, 1, 2, 0, time=1.0)],
        [*trained(1, 0, 1, 0, time=2.0), *trained(1, 1, 1, 1, time=3.0)],
        [start(2, 0, 2, 1, time=5.0), start(2, 1, 2, 1, time=5.0)],
        [*trained(2, 0, 2, 2, time=6.0), *trained(2, 1, 2, 3, time=7.5)],
        trained(2, 0, 3, 4, time=7.0),
    )

    assert found.first_completion(after=4.0) == 8.5  # a round that ran at the time of the kill does not count
    assert found.first_completion(after=4.0, size=3) is None
    assert found.longest_pause(after=4.0) == 4.0
    assert found.longest_pause(after=7.5) == 1.0


def test_a_steps_time_is_that_of_rounds_of_one_size() -> None:
    found = history(
        [start(1, 0, 1, 0), *(record for step in (1, 2, 3) for record in trained(1, 0, step, time=5.0 * step))],
        [start(2, 0, 2, 3), start(2, 1, 2, 3)],
        [record for step in (4, 5, 7) for record in trained(2, 0, step, time=100.0 + step)],
    )

    assert found.step_seconds(1) == 5.0
    assert found.step_seconds(2) == 1.5


def test_records_come_back_as_they_were_written_and_an_unfinished_line_waits(tmp_path: Path) -> None:
    recorder, reader = Recorder(tmp_path), RecordReader(tmp_path)
    recorder.round_start(3, 1, 2, "b", 7, "d")
    recorder.batch(1, 8, (5, 6))
    with (tmp_path / "1.jsonl").open("w") as other:
        other.write('["done", {"time": 1.0')
        other.flush()
        first = reader.read()
        other.write(', "round": 3, "rank": 0, "step": 8}]\n')
    recorder.done(8, "e")

    assert [type(record) for record in first] == [RoundStart, Batch]
    assert isinstance(first[1], Batch)
    assert (first[1].round, first[1].rank, first[1].epoch, first[1].step, first[1].samples) == (3, 1, 1, 8, (5, 6))
    assert [(type(record), getattr(record, "rank", None)) for record in reader.read()] == [(StepDone, 0), (StepDone, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_gives_the_same_schedule_with_room_for_two_workers(seed: int) -> None:
    schedule = schedule_of(seed, bursts=5)

    assert schedule == schedule_of(seed, bursts=5)
    assert len(schedule.bursts) == 5
    assert 2 <= sum(schedule.hosts.values()) <= MOST_WORKERS + 1
