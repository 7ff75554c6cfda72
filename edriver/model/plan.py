"""A round as it is planned: the candidates that it is made of, and the seat that each member gets. Pure data."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from edriver.model.frozen import frozen
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.memory_checkpoint import MemoryCheckpoint
from edriver.model.shards import HeldShards, Sharding
from edriver.model.store_address import StoreAddress


class Candidate(NamedTuple):  # made anew for each worker at each plan: a tuple takes half the time
    """The properties of a waiting worker on which its rank depends.

    Attributes:
        worker_id: grows with every worker started, so it is also the order of age.
        host: its host's name.
        slot: its slot on the host.
        version: the version of the state that it offers.
        store: the address of its store.
        checkpoint: the steps of the newest checkpoint that it can load; 0: no checkpoint, or it holds state.
        place: goes before its id. In a run's first round, and where no worker is older than its round, its host's index
            in the order of discovery, and its slot: rank 0 is on the first host however slowly that starts, and stays
            where its checkpoint is. Elsewhere 0 and its last rank, or (1, 0) if it has had none: survivors keep the
            order of their ranks.
        sealed: see WorkerWaiting.
        position: its position in a replica.
        replica: the replica of the last round that it was in; None: it was not in that round.
        shards: see WorkerWaiting.
    """

    worker_id: int
    host: str
    slot: int
    version: Version
    store: StoreAddress
    checkpoint: int = 0
    place: tuple[int, int] = (0, 0)
    sealed: Version | None = None
    position: int = 0
    replica: int | None = None
    shards: tuple[HeldShards, ...] = ()

    def reaches(self, version: Version) -> bool:
        """Whether it holds a version, or has kept the gradients of the step that leads to it."""
        return version in (self.version, self.sealed)

    @property
    def age(self) -> tuple[tuple[int, int], int]:
        """The oldest is the smallest."""
        return self.place, self.worker_id


@frozen
class Seat:
    """One member's place in a round; ranks with Horovod's meanings, and its host's place among the round's hosts.

    Attributes:
        max_on_machine: see Assignment.
    """

    worker_id: int
    host: str
    slot: int
    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host_rank: int = 0
    host_count: int = 1
    max_on_machine: int = 0


@frozen
class RoundPlan:
    """A round as the driver assigns it. As an action: begin it; every member learns its place.

    No message has this name: each host gets a part of it (AssignRound), and each member an Assignment.

    Attributes:
        round_id: the round.
        ordinal: the number of the script's `run` call that it belongs to.
        version: the version that it continues from.
        seats: the members in order of rank.
        store: the address of rank 0's store.
        receivers: the ranks that receive state, ascending: rank r from sources[r % replica_size]. Guests have the last
            ranks, and never receive.
        sources: for each position, the lowest rank of it that holds the version, or loads the checkpoint.
        replica_size: the number of workers in a replica.
        first_sync: whether states of that version may differ: the script's `run` call has not made them equal yet.
        gradient_norm: the norm by which members clip the gradients of the step that leads to that version, if they have
            yet to make it; None: no member knows it.
        checkpoint: the number of steps of the checkpoint that the sources load first; 0: they do not load.
        failures: the number of earlier rounds that ended by a failure.
        steps_lost: the number of steps beyond that version that its holders had made and cannot return to.
        torn: why they cannot; empty if that has been reported already.
        fallback_size: the smaller number of workers with which the run continues if the script fails with this size;
            0: there is no such number, or the script has trained with this size before.
        guarded: whether its members name their connections to one another before any byte of them is read.
        memory_checkpoint: the checkpoint in memory that all members load; None: there is none.
        sharding: see Assignment.
        workers: the members' worker_ids in order of rank.
    """

    round_id: RoundId
    ordinal: int
    version: Version
    seats: tuple[Seat, ...]
    store: StoreAddress
    receivers: tuple[int, ...]
    sources: tuple[int, ...] = (0,)
    replica_size: int = 1
    first_sync: bool = False
    gradient_norm: float | None = None
    checkpoint: int = 0
    failures: int = 0
    steps_lost: int = 0
    torn: str = ""
    fallback_size: int = 0
    guarded: bool = False
    memory_checkpoint: MemoryCheckpoint | None = None
    sharding: Sharding | None = None
    workers: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the members."""
        object.__setattr__(self, "workers", tuple(seat.worker_id for seat in self.seats))

    @property
    def replicas(self) -> int:
        """The number of replicas; guests are in none."""
        return len(self.seats) // self.replica_size

    @property
    def training_size(self) -> int:
        """The number of members in replicas: all but guests."""
        return self.replicas * self.replica_size

    @property
    def hands_over(self) -> bool:
        """Whether it hands state over and does not train: it has guests."""
        return self.training_size < len(self.seats)


@frozen
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
        sources: for each position, the rank that sends its state.
        receivers: the ranks, ascending, that receive state: rank r from sources[r % replica_size]. All others send and
            receive nothing.
        secret: the secret by which members of this round prove their membership, membership_proof.SECRET_BYTES long;
            empty for a round of one worker. Never shown.
        host_rank: the index of its host among the hosts of the round.
        host_count: the number of hosts with members.
        failures: the number of earlier rounds that ended by a failure.
        checkpoint: the number of steps of the checkpoint that the sources load before they send; 0: they do not load.
        fallback_size: the smaller number of workers with which the run continues if the script fails with `size`
            workers; 0: there is no such number, or the run has trained with `size` workers before.
        guarded: whether the members name their connections to one another before any byte of them is read.
        memory_checkpoint: the checkpoint in memory that all members load; None: there is none.
        replica_size: the number of workers in a replica: this worker's position in its replica is rank % replica_size,
            unless it is a guest.
        version: the version that the round continues from; NO_VERSION: no member holds state.
        first_sync: see RoundPlan.
        gradient_norm: see RoundPlan.
        sharding: how the version that the round continues from is cut, if all workers of a round hold the state once
            between them; NO_SHARDING: no member holds state. None: replicas have a fixed size.
        max_on_machine: the number of workers of the run that its machine can have at once: in the slots that the run
            can use, whether or not there are workers in them now, and members that have no slot any more. Hosts that
            share their processors are one machine. 0: the driver has not said.
    """

    round_id: RoundId
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    store: StoreAddress
    sources: tuple[int, ...]
    receivers: tuple[int, ...]
    secret: bytes = field(default=b"", repr=False)
    host_rank: int = 0
    host_count: int = 1
    failures: int = 0
    checkpoint: int = 0
    fallback_size: int = 0
    guarded: bool = False
    memory_checkpoint: MemoryCheckpoint | None = None
    replica_size: int = 1
    version: Version = NO_VERSION
    first_sync: bool = False
    gradient_norm: float | None = None
    sharding: Sharding | None = None
    max_on_machine: int = 0

    @property
    def replicas(self) -> int:
        """The number of replicas; guests are in none."""
        return self.size // self.replica_size

    @property
    def training_size(self) -> int:
        """The number of members in replicas: the first ranks. Guests have the others."""
        return self.replicas * self.replica_size

    @property
    def hands_over(self) -> bool:
        """Whether the round hands state over and does not train: it has guests."""
        return self.training_size < self.size

    @property
    def is_guest(self) -> bool:
        """Whether this worker is in no replica: it only sends what it holds, as the source of its position."""
        return self.rank >= self.training_size

    @property
    def position(self) -> int:
        """This worker's position in its replica."""
        return self.sources.index(self.rank) if self.is_guest else self.rank % self.replica_size

    def shares_replica(self, rank: int) -> bool:
        """Whether the worker of a rank is in this one's replica."""
        return self.sharding is not None or rank // self.replica_size == self.rank // self.replica_size


SINGLE_WORKER = Assignment(
    round_id=RoundId(0, 1),
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    cross_rank=0,
    cross_size=1,
    store=StoreAddress("", 0),
    sources=(0,),
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
    sources=(-1,),
    receivers=(),
    host_rank=-1,
    host_count=-1,
)
"""The assignment of a worker that skips a `run` because it came too late for it: all -1, as torch.distributed answers
a process that is not in a group. A script's `if edriver.rank() == 0` is then false."""
