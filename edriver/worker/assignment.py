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
        size: the number of workers in the round.
        local_rank: this worker's rank among the members on its host.
        local_size: the number of members on its host.
        cross_rank: the index of its host among the hosts that have a member with this local_rank.
        cross_size: the number of hosts that have a member with this local_rank.
        store: the address of rank 0's store.
        source: the rank that sends its state (always a holder of the highest version).
        receivers: the ranks, ascending, that receive state from the source. All others send and receive nothing.
        secret: the secret by which members of this round prove their membership, membership_proof.SECRET_BYTES long;
            empty for a round of one worker. Never shown.
        host_rank: the index of its host among the hosts of the round.
        host_count: the number of hosts with members.
        failures: the number of earlier rounds that ended by a failure.
        checkpoint: the number of steps of the checkpoint that the source loads before it sends; 0: it does not load.
        fallback_size: the smaller number of workers with which the run continues if the script fails with `size`
            workers; 0: there is no such number, or the run has trained with `size` workers before.
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
