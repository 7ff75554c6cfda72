"""Which rows travel when shards are cut anew: every row arrives once, from a holder, and none that is there already."""

from __future__ import annotations

import itertools

import pytest

from edriver.model.shards import shadow_keeper, shadowed_position
from edriver.worker.state.row_slices import plan_moves, shard_rows

ROWS = [1, 3, 4, 7, 12, 64]


@pytest.mark.parametrize("sizes", list(itertools.product(range(1, 6), repeat=2)), ids=str)
def test_every_row_arrives_once_and_both_ends_of_a_pair_name_the_same_pieces(sizes: tuple[int, int]) -> None:
    before, now = sizes
    members = max(sizes)
    held = [{rank, shadowed_position(rank, before)} if rank < before else set() for rank in range(members)][:now]
    if set().union(*held) != set(range(before)):
        return  # more are lost than shadows make up for
    targets = [{rank, shadowed_position(rank, now)} for rank in range(now)]
    moves = [plan_moves(rank, ROWS, sizes, held, targets) for rank in range(now)]
    for receiver, mine in enumerate(moves):
        found = [(sender, piece) for sender, taken in mine.incoming.items() for piece in taken]
        for new, (column, rows) in itertools.product(targets[receiver], enumerate(ROWS)):
            taken = [row for _, p in found if (p.new, p.column) == (new, column) for row in range(p.first, p.end)]
            assert sorted(taken) == list(range(*shard_rows(rows, now, new)))
        for sender, piece in found:
            assert piece.old in held[sender]
            assert sender == receiver or piece.old not in held[receiver]
            assert shard_rows(ROWS[piece.column], before, piece.old)[0] <= piece.first < piece.end
            assert piece.end <= shard_rows(ROWS[piece.column], before, piece.old)[1]
        for sender in set(range(now)) - {receiver}:
            assert moves[sender].outgoing.get(receiver) == mine.incoming.get(sender)
        assert receiver not in mine.outgoing


def test_a_worker_takes_what_it_holds_from_itself_and_the_rest_from_all_holders_in_turn() -> None:
    held: list[set[int]] = [{0, 1}, {1, 0}, set(), set()]
    targets = [{rank} for rank in range(4)]
    incoming = [set(plan_moves(rank, [8], (2, 4), held, targets).incoming) for rank in range(4)]
    assert incoming == [{0}, {1}, {0}, {1}]


def test_a_rank_deals_with_few_others_in_a_large_round() -> None:
    size = 512
    held = [{rank, shadowed_position(rank, size)} for rank in range(size - 1)]
    targets = [{rank, shadowed_position(rank, size - 1)} for rank in range(size - 1)]
    for rank in (0, 100, 510):
        moves = plan_moves(rank, [1 << 20] * 3, (size, size - 1), held, targets)
        assert len(moves.incoming) <= 5
        assert len(moves.outgoing) <= 8


@pytest.mark.parametrize("size", range(1, 9))
def test_each_rank_keeps_one_shadow(size: int) -> None:
    for position in range(size):
        keeper = shadow_keeper(position, size)
        assert shadowed_position(keeper, size) == position
        assert (keeper != position) == (size > 1)
