"""Checkpoints in memory: what names one, and what is known of its shards. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from edriver.model.ids import RoundId


class CheckpointId(NamedTuple):
    """Names a checkpoint in memory. Compared as tuples: a later round's is newer, whatever its step.

    Attributes:
        round_id: the round whose ranks have written it.
        step: the step, as the script counts them.
        size: the number of ranks of that round, of each of which it has one shard.
    """

    round_id: RoundId
    step: int
    size: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a checkpoint, as a host holds it.

    Attributes:
        checkpoint: the checkpoint.
        rank: the rank in that checkpoint's round.
        layout: a digest of what the checkpoint has in which shard: shards of one checkpoint belong together only if it
            is the same.
        nbytes: its length in bytes.
        copy: whether it was received from another host.
    """

    checkpoint: CheckpointId
    rank: int
    layout: bytes
    nbytes: int
    copy: bool = False


@dataclass(frozen=True, slots=True)
class ShardCopy:
    """A shard that a host is to fetch from another.

    Attributes:
        shard: the shard.
        address: where the ShardService of the host listens that has it.
    """

    shard: Shard
    address: str


@dataclass(frozen=True, slots=True)
class MemoryCheckpoint:
    """The checkpoint from which a round starts, and where its shards are.

    Attributes:
        checkpoint: the checkpoint.
        layout: see Shard.
        addresses: where the ShardServices of hosts listen.
        holders: for each rank of the checkpoint, the index in `addresses` of a host that has its shard.
    """

    checkpoint: CheckpointId
    layout: bytes
    addresses: tuple[str, ...]
    holders: tuple[int, ...]
