"""Which rows travel when shards are cut anew: every row arrives once, from a holder, and none that is there already."""

from __future__ import annotations

import itertools

import pytest

from edriver.model.shards import shadow_keeper, shadowed_position
from edriver.worker.state.shard_pieces import pieces, rows_of, source_of

ROWS = [1, 3, 4, 7, 12, 64]


@pytest.mark.parametrize("sizes", list(itertools.product(range(1, 6), repeat=2)), ids=str)
def test_every_row_arrives_once(sizes: tuple[int, int]) -> None:
    before, now = sizes
    members = max(sizes)
    held = [{rank, shadowed_position(rank, before)} if rank < before else set() for rank in range(members)][:now]
    if set().union(*held) != set(range(before)):
        return  # more are lost than shadows make up for
    for receiver in range(now):
        targets = {receiver, shadowed_position(receiver, now)}
        found = [(sender, p) for sender in range(now) for p in pieces(ROWS, sizes, held, targets, sender, receiver)]
        for new, (column, rows) in itertools.product(targets, enumerate(ROWS)):
            taken = [row for _, p in found if (p.new, p.column) == (new, column) for row in range(p.first, p.end)]
            assert sorted(taken) == list(range(*rows_of(rows, now, new)))
        for sender, piece in found:
            assert piece.old in held[sender]
            assert sender == receiver or piece.old not in held[receiver]
            assert rows_of(ROWS[piece.column], before, piece.old)[0] <= piece.first < piece.end
            assert piece.end <= rows_of(ROWS[piece.column], before, piece.old)[1]


def test_a_worker_takes_what_it_holds_from_itself_and_the_rest_from_all_holders_in_turn() -> None:
    held = [{0, 1}, {1, 0}, set(), set()]
    assert [source_of(0, receiver, held) for receiver in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("size", range(1, 9))
def test_each_rank_keeps_one_shadow(size: int) -> None:
    for position in range(size):
        keeper = shadow_keeper(position, size)
        assert shadowed_position(keeper, size) == position
        assert (keeper != position) == (size > 1)
