"""Records of hosts, slots and workers, and the states of a worker. Data: the roster alone changes them.

The quarantine keeps its counts in a host's record: `start`, `rest`, `failed`, `killed`, and what a slot has of a
Backoff.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edriver.model.cause import WorkerName
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate
from edriver.model.shards import HeldShards
from edriver.model.store_address import StoreAddress


class WorkerState(enum.Enum):
    """The state of a worker."""

    __hash__ = object.__hash__  # Enum's own is Python code, and the core looks these up in every step

    BOOTING = "booting"  # started, not yet waiting: importing, building its model, or between two `run` calls
    WAITING = "waiting"  # ready for a round
    TRAINING = "training"  # a member of the running round, or of one that has ended and that it has yet to leave
    DONE = "done"  # a member whose training function returned; still elastic
    FINISHED = "finished"  # received Finish; its `run` has returned
    STOPPING = "stopping"  # ordered to leave, or lost for the run; only its exit is awaited


class WorkerStep(enum.Enum):
    """The events that change a worker's state: its reports, and orders to it."""

    __hash__ = object.__hash__  # Enum's own is Python code, and the core looks these up in every step

    OFFER = "WorkerWaiting"
    JOIN = "RoundPlan"
    RETURN = "WorkerDone"
    FINISH = "Finish"
    SEND_BACK = "Skip, FindNewestCheckpoint"
    STOP = "Leave, StopWorker, or it is lost"


WORKER_TRANSITIONS: Final = {
    (WorkerState.BOOTING, WorkerStep.OFFER): WorkerState.WAITING,
    (WorkerState.BOOTING, WorkerStep.STOP): WorkerState.STOPPING,
    (WorkerState.WAITING, WorkerStep.OFFER): WorkerState.WAITING,
    (WorkerState.WAITING, WorkerStep.SEND_BACK): WorkerState.BOOTING,
    (WorkerState.WAITING, WorkerStep.JOIN): WorkerState.TRAINING,
    (WorkerState.WAITING, WorkerStep.STOP): WorkerState.STOPPING,
    (WorkerState.TRAINING, WorkerStep.OFFER): WorkerState.WAITING,  # its round has ended
    (WorkerState.TRAINING, WorkerStep.RETURN): WorkerState.DONE,
    (WorkerState.TRAINING, WorkerStep.STOP): WorkerState.STOPPING,
    (WorkerState.DONE, WorkerStep.OFFER): WorkerState.WAITING,  # its round has ended before all were done
    (WorkerState.DONE, WorkerStep.RETURN): WorkerState.DONE,  # reported twice
    (WorkerState.DONE, WorkerStep.FINISH): WorkerState.FINISHED,
    (WorkerState.DONE, WorkerStep.STOP): WorkerState.STOPPING,
    (WorkerState.FINISHED, WorkerStep.OFFER): WorkerState.WAITING,  # in the script's next `run`
    (WorkerState.FINISHED, WorkerStep.STOP): WorkerState.STOPPING,
    (WorkerState.STOPPING, WorkerStep.STOP): WorkerState.STOPPING,  # stopped with its round, and lost
}
"""What follows from what. A worker begins as BOOTING, and its record ends with its process."""


@dataclass(slots=True)
class Offer:
    """What a waiting worker has reported of itself."""

    ordinal: int
    version: Version
    store: StoreAddress
    digest: str
    steps_lost: int = 0
    torn: str = ""
    checkpoint: int | None = None
    sealed: Version | None = None
    gradient_norm: float | None = None
    shards: tuple[HeldShards, ...] = ()
    latest: bool = False
    """Whether no worker could hold state, and write a newer checkpoint, when it looked for this one."""


class OfferKind(NamedTuple):
    """What tells the offers of one `run` call apart, as far as it matters whether a round can form.

    Attributes:
        version: see Offer,
        checkpoint: 0 for None.
        placed: whether the worker has a slot.
        leaving: whether its slot is drained, and it stays until others have taken over.
        sealed: see WorkerWaiting.
        position: the worker's position in a replica.
        shards: see WorkerWaiting.
    """

    version: Version
    checkpoint: int
    placed: bool
    leaving: bool = False
    sealed: Version | None = None
    position: int = 0
    shards: tuple[HeldShards, ...] = ()

    def reaches(self, version: Version) -> bool:
        """Whether the worker has this version, or reaches it with gradients that it has kept."""
        return version in (self.version, self.sealed)


@dataclass(slots=True)
class Worker:
    """One incarnation of a process in a slot.

    Attributes:
        worker_id: never reused, and the order of age.
        host: its host's name.
        slot: its slot there, which never changes.
        state: see WorkerState.
        offer: its offer while it is WAITING.
        waiting_since: when it became WAITING.
        rank: its last rank, or None.
        traceback: the exception of the script that it reported.
        stop_at: when to terminate it, if it was ordered to leave.
        ending: whether its process has ended and its exit has not been reported yet.
        trainer_gone: whether its training process has ended; its command may still run.
        started: when it was started.
        unexplained: whether its process ended on its own and has not been reaped, so that the cause is not known yet.
        looks_after: the last round, if no worker could still write a checkpoint of it when this one was started,
            seated or ordered to look again, so that this one sees all checkpoints. None: a worker could still write.
        trained: whether it has passed a boundary in a round.
        leave_at: if its slot is drained, until when it trains on while its replacement gets ready; None: not at all.
        position: its position in a replica, from 0: it holds that part of the state, so it never changes.
    """

    worker_id: int
    host: str
    slot: int
    state: WorkerState = WorkerState.BOOTING
    offer: Offer | None = None
    waiting_since: float = 0.0
    rank: int | None = None
    traceback: str = ""
    stop_at: float | None = None
    ending: bool = False
    trainer_gone: bool = False
    started: float = 0.0
    unexplained: bool = False
    looks_after: RoundId | None = None
    trained: bool = False
    leave_at: float | None = None
    position: int = 0

    @property
    def live(self) -> bool:
        """Whether the run may still count on it."""
        return self.state is not WorkerState.STOPPING

    @property
    def in_run(self) -> bool:
        """Whether it is inside a `run` that is not over: its process must not end now."""
        return self.state in (WorkerState.WAITING, WorkerState.TRAINING, WorkerState.DONE)

    @property
    def may_hold(self) -> bool:
        """Whether it may hold state of a round."""
        if self.state is WorkerState.WAITING:
            return self.offer is not None and self.offer.version != NO_VERSION
        return self.state in (WorkerState.TRAINING, WorkerState.DONE, WorkerState.FINISHED)

    @property
    def may_write(self) -> bool:
        """Whether it may still write a checkpoint, although the run does not count on it any more."""
        return self.state is WorkerState.STOPPING and self.rank is not None and not self.trainer_gone

    def waits_in(self, ordinal: int) -> bool:
        """Whether it is ready for a round of this `run` call."""
        return self.state is WorkerState.WAITING and self.offer is not None and self.offer.ordinal == ordinal

    def candidate(self, place: tuple[int, int] = (0, 0), replica: int | None = None) -> Candidate:
        """Its offer, as rank assignment reads it; `place` and `replica` as there."""
        assert self.offer is not None
        return Candidate(
            worker_id=self.worker_id,
            host=self.host,
            slot=self.slot,
            version=self.offer.version,
            store=self.offer.store,
            checkpoint=self.offer.checkpoint or 0,
            place=place,
            sealed=self.offer.sealed,
            position=self.position,
            replica=replica,
            shards=self.offer.shards,
        )

    @property
    def name(self) -> WorkerName:
        """What an operator may know it by."""
        return WorkerName(self.worker_id, self.host, self.slot, self.rank)


@dataclass(slots=True)
class Backoff:
    """How often something has failed, and until when it is not used for that.

    Attributes:
        failures: how often, without a whole failure window free of failures between two of them.
        last_failure: when it failed last.
        free_at: when it may be used again.
    """

    failures: int = 0
    last_failure: float = 0.0
    free_at: float = 0.0

    def fail(self, now: float, window: float, cooldown: Callable[[int], float]) -> float:
        """Count a failure and begin the cooldown that follows; returns its length in seconds.

        Args:
            now: the time.
            window: seconds without a failure after which earlier failures are forgotten.
            cooldown: seconds for a number of failures, this one included.
        """
        if now - max(self.last_failure, self.free_at) > window:
            self.failures = 0
        self.failures += 1
        self.last_failure = now
        pause = cooldown(self.failures)
        self.free_at = now + pause
        return pause


@dataclass(slots=True)
class Slot(Backoff):
    """One slot of a host, and what became of its workers.

    Attributes:
        completed: whether its worker went through the whole script.
    """

    completed: bool = False


@dataclass(slots=True)
class HostRecord:
    """A host that discovery names, or has named.

    Attributes:
        name: the host's name.
        slots: the number of its slots; 0 once discovery no longer names it.
        agent_id: the ID of its agent; None before one is started.
        connected: whether that agent takes orders.
        start: failures to start its agent, counted like those of a slot's workers.
        rest: its quarantines.
        places: its slots by number.
        failed: the time and slot of each failure that a worker itself caused.
        killed: the time and slot of each worker that was killed from outside.
        drained: the drained slots.
        drained_whole: whether all slots are drained, including any that it gets later.
        to_be_lost: whether it is drained because its source has given notice that the host will be lost.
        offset: the position of slot 0, if the host has fewer slots than a replica has workers; None: not chosen yet.
        processors: names its processors, as its agent has said: see AgentConnected; empty: not known.
    """

    name: str
    slots: int = 0
    agent_id: int | None = None
    connected: bool = False
    start: Backoff = field(default_factory=Backoff)
    rest: Backoff = field(default_factory=Backoff)
    places: dict[int, Slot] = field(default_factory=dict)
    # Values that never change, all hosts share at first: two deques and a set for each of a thousand hosts take 1.4 MB.
    failed: Sequence[tuple[float, int]] = ()
    killed: Sequence[tuple[float, int]] = ()
    drained: Set[int] = frozenset()
    drained_whole: bool = False
    to_be_lost: bool = False
    offset: int | None = None
    processors: str = ""

    @property
    def machine(self) -> str:
        """The same for hosts that share their processors, as far as that is known."""
        return self.processors or f"host {self.name}"

    @property
    def present(self) -> bool:
        """Whether discovery names it."""
        return self.slots > 0

    @property
    def wanted(self) -> bool:
        """Whether it is to be used: discovery names it, and it is not drained."""
        return self.present and not self.drained_whole

    @property
    def open_slots(self) -> list[int]:
        """The slots that are to be used."""
        return [slot for slot in range(self.slots) if not self.is_drained(slot)]

    @property
    def open_count(self) -> int:
        """The number of slots to use."""
        if self.drained_whole:
            return 0
        return self.slots - sum(slot < self.slots for slot in self.drained) if self.drained else self.slots

    def ready_slots(self, now: float) -> list[int]:
        """The slots to be used that are in no cooldown, whether taken or not."""
        return [slot for slot in self.open_slots if self.places.setdefault(slot, Slot()).free_at <= now]

    def forget_failures_before(self, then: float) -> None:
        """Keep the workers' failures of a window."""
        self.failed = tuple(failure for failure in self.failed if failure[0] >= then)
        self.killed = tuple(kill for kill in self.killed if kill[0] >= then)

    def is_drained(self, slot: int) -> bool:
        """Whether a slot is to be left."""
        return self.drained_whole or slot in self.drained

    def drain(self, slot: int | None) -> None:
        """Leave a slot; None: all."""
        if slot is None:
            self.drained_whole = True
        else:
            self.drained |= {slot}

    def undrain(self, slot: int | None) -> None:
        """Use a slot again; None: all."""
        self.drained_whole = self.to_be_lost = False
        if slot is None:
            self.drained = frozenset()
        else:
            self.drained -= {slot}
