"""The sampler's split: whatever sizes the rounds have and wherever they end, each sample is done once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from edriver.worker.sampler.cursor import Cursor, CursorState


@dataclass(frozen=True)
class Round:
    """A round of an epoch.

    Attributes:
        size: how many workers it has.
        batch: samples of a rank's batch.
        steps: batches after which it ends, if the epoch has not ended by then.
        lost: whether a step is under way then, of which some ranks have recorded their batch.
    """

    size: int
    batch: int
    steps: int
    lost: bool


ROUNDS = st.lists(st.builds(Round, st.integers(1, 9), st.integers(1, 7), st.integers(0, 6), st.booleans()), max_size=12)


def train(cursors: list[Cursor], batch: int, steps: int) -> list[int]:
    """So many steps of a round, or as many as are left; returns the places that are done then."""
    done: list[int] = []
    for _ in range(steps):
        count = min(batch, cursors[0].share - cursors[0].recorded)
        if not count:
            break
        for cursor in cursors:
            done += cursor.next_positions(count)
            cursor.record(count)
    return done


@given(st.integers(1, 200), ROUNDS, st.integers(1, 9))
def test_each_sample_is_done_once_at_any_sequence_of_sizes(length: int, rounds: list[Round], last_size: int) -> None:
    state, done = CursorState(0, 0, 0), list[int]()
    workers = [Cursor(length) for _ in range(9)]
    for each in [*rounds, Round(last_size, 1, length, lost=False)]:
        cursors = workers[: each.size]
        for rank, cursor in enumerate(cursors):
            cursor.load(state)
            cursor.enter(rank, each.size)
        done += train(cursors, each.batch, each.steps) if cursors[0].remaining else []
        assert len({cursor.state() for cursor in cursors}) == 1, "ranks disagree at a boundary"
        state = cursors[0].state()
        if each.lost and cursors[0].remaining:
            train(cursors[: (each.size + 1) // 2], each.batch, 1)  # of which nothing counts: they go back
    counts = Counter(done)
    assert counts.keys() == set(range(length))
    assert state.offset == length
    padding = counts.total() - length
    assert padding < max(each.size for each in [*rounds, Round(last_size, 1, 1, lost=False)])
    assert max(counts.values()) <= 1 or padding > 0


@given(st.integers(1, 1000), st.integers(1, 20), st.integers(0, 19), st.integers(1, 50))
def test_batches_by_number_are_what_is_recorded(length: int, size: int, rank: int, batch_size: int) -> None:
    cursor = Cursor(length)
    cursor.enter(rank % size, size)
    taken = list[int]()
    number = 0
    while cursor.recorded < cursor.share:
        taken += cursor.batch(number, batch_size)
        cursor.record_batch(number, batch_size)
        number += 1
    assert taken == list(range(cursor.share))
    assert cursor.offset == length
