"""A worker's place in a round, as the driver assigned it."""

from __future__ import annotations

from dataclasses import dataclass, field

from edriver.model.ids import RoundId
from edriver.model.store_address import StoreAddress


@dataclass(frozen=True, slots=True)
class Assignment:
    """One worker's place in one round, as the driver assigned it.

    Attributes:
        round_id: the round.
        rank: this worker's rank, 0 to size - 1.
        size: how many workers the round has.
        local_rank: this worker's rank among the members on its host.
        local_size: how many members its host has.
        cross_rank: this host's place among the hosts that have a member with this local_rank.
        cross_size: how many hosts have a member with this local_rank.
        store: where rank 0's store listens.
        source: the rank that sends its state (always a holder of the highest version).
        receivers: the ranks, ascending, that receive state from the source. Everyone else sends and receives nothing.
        secret: what members of this round prove their membership with, membership_proof.SECRET_BYTES long; empty where
            there are no others. Never shown.
        host_rank: its host's place among the hosts of the round.
        host_count: how many hosts have members.
        failures: how many rounds have ended by a failure before this one.
        checkpoint: the steps of the checkpoint that the source loads before it sends; 0: it loads none.
        fallback_size: with how many workers, fewer than `size`, the run goes on if the script fails with so many; 0:
            with none, or it has trained with so many before.
        guarded: whether the members name their connections to one another before any byte of them is read.
    """

    round_id: RoundId
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    store: StoreAddress
    source: int
    receivers: tuple[int, ...]
    secret: bytes = field(default=b"", repr=False)
    host_rank: int = 0
    host_count: int = 1
    failures: int = 0
    checkpoint: int = 0
    fallback_size: int = 0
    guarded: bool = False


SINGLE_WORKER = Assignment(
    round_id=RoundId(0, 1),
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    cross_rank=0,
    cross_size=1,
    store=StoreAddress("", 0),
    source=0,
    receivers=(),
)
"""The place of a process that no driver has started."""

NO_ASSIGNMENT = Assignment(
    round_id=RoundId(0, 0),
    rank=-1,
    size=-1,
    local_rank=-1,
    local_size=-1,
    cross_rank=-1,
    cross_size=-1,
    store=StoreAddress("", 0),
    source=-1,
    receivers=(),
    host_rank=-1,
    host_count=-1,
)
"""The assignment of a worker that skips a `run` because it came too late for it: all -1, as torch.distributed answers
a process that is not in a group. A script's `if edriver.rank() == 0` is then false."""
