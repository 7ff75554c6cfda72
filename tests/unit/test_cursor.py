"""The cursor: an epoch visits every sample once, whatever happens to the number of workers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edriver.worker.sampler.cursor import Cursor, CursorState


def rows(cursors: list[Cursor], batch_size: int) -> list[int]:
    """Positions that all ranks take in their next batch, row by row; counts them as recorded."""
    taken = []
    for cursor in cursors:
        positions = list(cursor.next_positions(batch_size))
        cursor.record(len(positions))
        taken.append(positions)
    return [position for row in zip(*taken, strict=True) for position in row]


def world(size: int, length: int, state: CursorState) -> list[Cursor]:
    """All ranks of a round that starts from a state."""
    cursors = []
    for rank in range(size):
        cursor = Cursor(length)
        cursor.load(state)
        cursor.enter(rank, size)
        cursors.append(cursor)
    return cursors


@pytest.mark.parametrize("seed", range(100))
def test_an_epoch_visits_every_sample_once_through_any_resizes_and_losses(seed: int) -> None:
    rng = random.Random(seed)
    length, batch_size = rng.randint(1, 200), rng.randint(1, 8)
    state = CursorState(epoch=0, seed=0, offset=0)
    trained: list[int] = []
    while state.offset < length:
        cursors = world(rng.randint(1, 9), length, state)
        assert len({cursor.share for cursor in cursors}) == 1
        for _ in range(rng.randint(0, 6)):
            if cursors[0].recorded == cursors[0].share:
                break
            batch = rows(cursors, batch_size)
            if rng.random() < 0.15:  # an abort: the step is not committed
                break
            trained += batch
            states = {cursor.state() for cursor in cursors}
            assert len(states) == 1, "ranks disagree at a boundary"
            state = states.pop()
    assert trained[:length] == list(range(length)), "each sample once, in the epoch's order"
    padding = trained[length:]
    assert len(padding) < 9
    assert max(Counter(padding).values(), default=0) <= 9


@pytest.mark.parametrize(
    ("length", "base", "size", "share"),
    [
        pytest.param(10, 0, 1, 10, id="alone"),
        pytest.param(10, 0, 3, 4, id="padded"),
        pytest.param(9, 0, 3, 3, id="even"),
        pytest.param(10, 9, 4, 1, id="fewer-samples-than-workers"),
        pytest.param(10, 10, 4, 0, id="epoch-done"),
        pytest.param(0, 0, 2, 0, id="empty-dataset"),
    ],
)
def test_every_rank_has_the_same_share(length: int, base: int, size: int, share: int) -> None:
    for cursor in world(size, length, CursorState(0, 0, base)):
        assert cursor.share == share
        assert len(list(cursor.next_positions(length + 1))) == share


def test_padding_repeats_from_the_start_of_what_remained() -> None:
    assert rows(world(4, 6, CursorState(0, 0, 0)), 2) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert rows(world(4, 6, CursorState(0, 0, 5)), 1) == [5, 5, 5, 5]


def test_offset_is_bounded_by_the_length() -> None:
    cursors = world(4, 6, CursorState(0, 0, 0))
    rows(cursors, 2)
    assert cursors[3].state() == CursorState(0, 0, 6)


def test_entering_a_round_keeps_what_is_done_and_splits_the_rest() -> None:
    cursor = Cursor(10)
    cursor.enter(1, 2)
    cursor.record(2)
    cursor.enter(0, 3)
    assert (cursor.base, cursor.recorded, cursor.share) == (4, 0, 2)
    assert list(cursor.next_positions(9)) == [4, 7]
    cursor.enter(0, 3)
    assert cursor.base == 4, "entering twice changes nothing"


def test_set_epoch_with_the_current_epoch_does_nothing() -> None:
    cursor = Cursor(10)
    cursor.record(4)
    cursor.set_epoch(0)
    assert cursor.state() == CursorState(0, 0, 4)
    cursor.set_epoch(1)
    assert cursor.state() == CursorState(1, 0, 0)
    assert cursor.share == 10


def test_batches_are_recorded_once_each_in_order() -> None:
    cursor = Cursor(10)
    cursor.record_batch(0, 4)
    for wrong, found in ((0, "4 of this rank's 10"), (2, "batch 1 was skipped"), (3, "batches 1 to 2 were skipped")):
        with pytest.raises(ValueError, match=f"batch {wrong} of size 4 is not the next one: {found}"):
            cursor.record_batch(wrong, 4)
    assert cursor.recorded == 4, "a refused batch changes nothing"
    cursor.record_batch(1, 4)
    cursor.record_batch(2, 4)
    assert cursor.recorded == 10, "the last batch is short"
    with pytest.raises(ValueError, match="call set_epoch"):
        cursor.record_batch(0, 4)


def test_a_short_last_batch_may_be_recorded_by_its_own_length() -> None:
    cursor = Cursor(10)
    cursor.record_batch(0, 4)
    cursor.record_batch(1, 4)
    cursor.record_batch(2, 2)
    assert cursor.recorded == 10


def test_a_batch_that_was_skipped_can_be_recorded_as_done() -> None:
    cursor = Cursor(40)
    cursor.record_batch(0, 8)
    with pytest.raises(ValueError, match=r"skipped and not recorded\. .* record it in the sampler as well"):
        cursor.record_batch(2, 8)
    cursor.record_batch(1, 8)
    cursor.record_batch(2, 8)


@pytest.mark.parametrize("wrong", [(0, 8), (1, 3), (2, 3), (9, 0)])
def test_what_is_no_skip_is_not_called_one(wrong: tuple[int, int]) -> None:
    cursor = Cursor(40)
    cursor.record_batch(0, 8)
    with pytest.raises(ValueError, match="is not the next one: 8 of this rank's 40"):
        cursor.record_batch(*wrong)


@pytest.mark.parametrize("batch", [(1, 3), (3, 2), (0, 2)], ids=["not-the-rest", "skipped", "again"])
def test_other_lengths_are_refused(batch: tuple[int, int]) -> None:
    cursor = Cursor(10)
    cursor.record_batch(0, 4)
    cursor.record_batch(1, 4)
    with pytest.raises(ValueError, match="is not the next one"):
        cursor.record_batch(*batch)


@pytest.mark.parametrize("batch_size", [0, -4])
def test_a_batch_has_samples(batch_size: int) -> None:
    with pytest.raises(ValueError, match="is not the next one"):
        Cursor(10).record_batch(0, batch_size)


@pytest.mark.parametrize("count", [-1, 11])
def test_no_more_is_recorded_than_there_is(count: int) -> None:
    with pytest.raises(ValueError, match=f"cannot record {count} more samples: 0 of this rank's 10"):
        Cursor(10).record(count)


def test_a_state_of_a_longer_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="11 samples done, and the dataset has 10"):
        Cursor(10).load(CursorState(0, 0, 11))


def test_batch_gives_a_short_end_and_nothing_beyond() -> None:
    cursor = Cursor(10)
    assert list(cursor.batch(2, 4)) == [8, 9]
    assert list(cursor.batch(3, 4)) == []


def test_steps_of_all_ranks_are_counted_beside_what_each_records() -> None:
    cursor = Cursor(20)
    cursor.enter(1, 2)
    cursor.record_step(6)
    assert cursor.offset == 6
    state = cursor.state()
    cursor.enter(0, 3)
    assert (cursor.base, cursor.offset) == (6, 6)
    cursor.record(2)
    assert cursor.offset == 12
    cursor.set_epoch(1)
    assert cursor.offset == 0
    cursor.load(state)
    assert cursor.offset == 6
