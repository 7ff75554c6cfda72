"""Shards of a state that all workers of a round hold once between them: how it is cut, and who holds which part."""

from __future__ import annotations

from typing import NamedTuple

from edriver.model.ids import NO_ROUND, RoundId


class Sharding(NamedTuple):
    """How a state is cut into shards: a round cuts it into as many as it has workers, by their ranks.

    Attributes:
        round_id: the round that has made the shards.
        size: the number of shards.
    """

    round_id: RoundId
    size: int


NO_SHARDING = Sharding(NO_ROUND, 0)
"""Of a state that no worker holds yet."""


class HeldShards(NamedTuple):
    """What a worker holds of a version.

    Attributes:
        sharding: how that is cut.
        positions: the ranks in that round whose shards it holds, ascending: its own, and that of which it keeps a
            shadow.
    """

    sharding: Sharding
    positions: tuple[int, ...]


def shadow_keeper(position: int, size: int) -> int:
    """The rank that keeps the shadow of a position's shard; the position itself in a round of one worker.

    Ranks of one host are contiguous, so the rank half round lies on another host, wherever no host has more than half
    of the workers.
    """
    return (position + size // 2) % size


def shadowed_position(rank: int, size: int) -> int:
    """The position of whose shard a rank keeps the shadow; its own in a round of one worker."""
    return (rank - size // 2) % size
