"""What holds for a worker's process as a whole: one object, made once, which stands in `current`.

What a script calls without an object of edriver's (`edriver.rank()`, `edriver.phase`, a sampler that it makes) looks
there; the parts of the rounds are given it. A test puts its own context in its place. A forked child inherits its
parent's: a data loader's process answers as the worker does. A process that was started again has an empty one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

from edriver.calls.worker_process import owner
from edriver.model.ids import NO_ROUND, RoundId, Version
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.model.stall_limits import Phase
from edriver.worker.errors import NoRankError

R = TypeVar("R")
T = TypeVar("T")


class CurrentPlace:
    """This worker's place in the current round; after `run` has returned, in the last one."""

    def __init__(self) -> None:
        self._assignment: Assignment | None = None
        self._listeners: list[Callable[[], object]] = []

    @property
    def in_round(self) -> bool:
        """Whether a driver has given this worker a place."""
        return self._assignment is not None

    @property
    def assignment(self) -> Assignment:
        """The place; that of a world of one where no driver has started this process.

        Raises:
            RuntimeError: this process has no rank. NoRankError: under the driver, before this worker's first round has
                begun: it has no rank yet.
        """
        if self._assignment is not None:
            return self._assignment
        if "EDRIVER_WORKER_ID" not in os.environ:
            return SINGLE_WORKER
        if (pid := owner()) is not None:
            raise RuntimeError(
                f"this process has no rank: the worker that started it (process {pid}) has one, and can pass it on"
            )
        raise NoRankError(
            "this worker has no rank yet: ranks are assigned when a round begins, so ask for them inside the function "
            "that edriver.run wraps, or after it has returned"
        )

    def enter(self, assignment: Assignment) -> None:
        """Take a place: called by `run` at the start of each round."""
        self._assignment = assignment
        for listener in self._listeners:
            listener()

    def leave(self) -> None:
        """Forget the place, as if no round had begun."""
        self._assignment = None

    def listen(self, listener: Callable[[], object]) -> None:
        """Call this whenever a place has been taken, on the thread that takes it. Asking twice changes nothing."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    @contextlib.contextmanager
    def rehearsing(self, place: Assignment = SINGLE_WORKER) -> Iterator[None]:
        """Have a place before this worker's first round: in a world of its own, or of one replica."""
        before, self._assignment = self._assignment, place
        try:
            yield
        finally:
            self._assignment = before


class TrainingPhase:
    """What the training thread does, as far as its script and the rounds declare it. Others read it at any time.

    Attributes:
        phase: what it is doing.
        changes: how often that has changed.
        show: called with each new phase, and with None when a round is left.
    """

    def __init__(self) -> None:
        self.phase = Phase.STEP
        self.changes = 0
        self.show: Callable[[Phase | None], None] = lambda _phase: None

    def change(self, phase: Phase) -> Phase:
        """Begin a phase; returns the one before."""
        before, self.phase = self.phase, phase
        self.changes += 1
        self.show(phase)
        return before


class RoundCounters:
    """Numbers the operations that all members of a round make in the same order through its store.

    Each operation gets its own keys. In a world that never changes, rounds share a store, so the round is part of the
    key as well.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[RoundId, int]] = {}

    def next(self, purpose: str, round_id: RoundId) -> int:
        """The number of this time in the round, from 1."""
        last, count = self._last.get(purpose, (NO_ROUND, 0))
        count = count + 1 if last == round_id else 1
        self._last[purpose] = round_id, count
        return count


class SaveRequests:
    """What an operator has asked this worker for, in elastic mode: a checkpoint on disk. Used on several threads.

    Attributes:
        report: tells the driver that a checkpoint is on disk which meets the requests up to a number.
    """

    def __init__(self) -> None:
        self.report: Callable[[int], None] = lambda _number: None
        self._lock = threading.Lock()
        self._round_id = NO_ROUND  # in which a checkpoint is yet to be begun
        self._number = 0
        self._written = 0

    def request(self, round_id: RoundId, number: int) -> None:
        """A checkpoint is to be begun in this round, unless one is on disk that meets the request of this number."""
        with self._lock:
            if number > self._written or not number:  # without a number: of an older driver
                self._round_id, self._number = round_id, max(number, self._number)

    def wanted(self, round_id: RoundId) -> bool:
        """Whether one of this round is to be begun."""
        return round_id != NO_ROUND and self._round_id == round_id

    def begin(self) -> int:
        """One is begun, asked for or not; returns the number of the last request, which it meets once it is on disk."""
        with self._lock:
            self._round_id = NO_ROUND
            return self._number

    def written(self, number: int) -> None:
        """The one is on disk that was begun with this number."""
        with self._lock:
            if number <= self._written:
                return
            self._written = number
            if self._number == number:
                self._round_id = NO_ROUND  # another round has asked for it again meanwhile
        self.report(number)


class LostMembers:
    """The members of this worker's rounds whose processes have ended while the round was on, as the driver has named
    them: of several that are lost together it names one.
    """

    def __init__(self) -> None:
        self._found = deque[tuple[RoundId, int]](maxlen=64)  # of the latest rounds: what awaits them ends soon

    def add(self, round_id: RoundId, rank: int) -> None:
        """The process of this rank of a round has ended."""
        self._found.append((round_id, rank))

    def has(self, round_id: RoundId, rank: int) -> bool:
        """Whether it has."""
        return (round_id, rank) in tuple(self._found)


class MicroBatch:
    """The micro-batch that the training thread computes, if only its own replica takes part in that.

    When another replica loses a worker, the members of this one finish a micro-batch that they have begun, so that what
    they have accumulated stays whole. None of them leaves it in the middle, where others may wait for it in a
    collective. Used on the training thread, and on the one that severs a round.
    """

    def __init__(self) -> None:
        self._may_be_finished = self._begun = False
        self._keep: Callable[[], Callable[[], object] | None] = lambda: None

    def keep_with(self, keep: Callable[[], object]) -> None:
        """Have a method, of an object that this does not keep alive, keep gradients for the next round if the training
        function is left for a loss.
        """
        self._keep = weakref.WeakMethod(keep)

    def interrupted(self) -> None:
        """The training function has been left for a loss, and the state is about to go back to the last boundary."""
        self.end()
        keep, self._keep = self._keep(), lambda: None
        if keep is not None:
            keep()

    def open(self) -> None:
        """One is about to begin that can be finished without other replicas."""
        self._may_be_finished = True

    def begin(self) -> None:
        """It is about to communicate: from here on it is finished. Comes before a look whether the round is over, so
        that the thread that severs it sees that it has begun, or this one sees that the round is over.
        """
        self._begun = self._may_be_finished

    def end(self) -> None:
        """It is over, or is not to be finished."""
        self._may_be_finished = self._begun = False

    @property
    def is_finished(self) -> bool:
        """Whether one has begun that is to be finished although the round is over."""
        return self._begun


class RoundRunner(Protocol):
    """What `edriver.run` calls a script's functions in."""

    @property
    def version(self) -> Version:
        """The version of the last boundary, as this worker would offer it."""

    def check(self) -> None:
        """Check whether a member is lost, without counting a boundary; raises PeerLostError."""

    def run(self, function: Callable[..., R], state: Any, args: Any, kwargs: Any) -> R | None:
        """Call the function, with the state before the other arguments, in each round."""


class RestartMember(Protocol):
    """A worker in restart mode, as a member of its round."""

    @property
    def assignment(self) -> Assignment:
        """Its place."""

    @property
    def is_here(self) -> bool:
        """Whether this process is the worker, and not a child that it has forked."""

    def store(self) -> Any:
        """A connection to the round's store, torch's."""

    def note_step(self, step: int) -> None:
        """The script has made a step; if the process ends now, its agent knows."""


class WorkerContext:
    """What holds for a process as a whole.

    Attributes:
        place: of this worker in the current round.
        phase: what its training thread does.
        counters: of what the members of a round do through its store.
        save_requests: for checkpoints on disk.
        lost_members: of rounds that were aborted.
        micro_batch: that the training thread computes.
        rounds: of this process; None: the script has not called `run` yet.
        checkpoint_requested: answers `edriver.checkpoint_requested`: in restart mode alone one is ever requested.
        need_checkpoint_server: has the agent start its host's checkpoint server.
        restart_member: of the round, in restart mode; None elsewhere, and in a process that the worker has started.
    """

    def __init__(self) -> None:
        self.place = CurrentPlace()
        self.phase = TrainingPhase()
        self.counters = RoundCounters()
        self.save_requests = SaveRequests()
        self.lost_members = LostMembers()
        self.micro_batch = MicroBatch()
        self.rounds: RoundRunner | None = None
        self.checkpoint_requested: Callable[[], bool] = lambda: False
        self.need_checkpoint_server: Callable[[], None] = lambda: None
        self.restart_member: RestartMember | None = None
        self._parts: dict[type, object] = {}

    def part(self, kind: type[T]) -> T:
        """The one object of a class that another room keeps for the process; made when it is first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind()
        return cast(T, self._parts[kind])


current = WorkerContext()
"""The context of this process."""


def assignment() -> Assignment:
    """This worker's place in the current round (after `run` has returned: in the last one).

    Raises:
        RuntimeError: under the driver, before this worker's first round has begun: it has no rank yet.
    """
    return current.place.assignment


def place_in_replica() -> tuple[int, int] | None:
    """A position in a replica, and the number of workers in one, where others train before this worker's first round
    and would wait in it for what can be done before. The position is this worker's for life; if all workers of a round
    are one replica, both are of the round that trains.
    """
    if "EDRIVER_REPLICA_SIZE" not in os.environ:
        return None
    return int(os.environ["EDRIVER_POSITION"]), int(os.environ["EDRIVER_REPLICA_SIZE"])


def in_round() -> bool:
    """Whether a driver has assigned this worker a place."""
    return current.place.in_round


def worker_seed(base: int = 0) -> int:
    """Return a seed that no other worker of the run ever has, not even a replacement.

        torch.manual_seed(edriver.worker_seed(42))

    The seed stays the same for the whole life of a worker's process, whatever its rank, and is available at any time.
    With a constant seed in the script, a newcomer would draw the same numbers as others before.

    Args:
        base: the script's seed; with the same base, the n-th worker of every run has the same seed.

    Returns:
        A number from 0 to 2**63 - 1.
    """
    text = f"{base}:{os.environ.get('EDRIVER_WORKER_ID', '0')}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def rank() -> int:
    """This worker's rank in the round, 0 to size() - 1."""
    return assignment().rank


def size() -> int:
    """The number of workers in the round."""
    return assignment().size


def local_rank() -> int:
    """This worker's rank among the members on its host, 0 to local_size() - 1."""
    return assignment().local_rank


def local_size() -> int:
    """The number of members on this worker's host."""
    return assignment().local_size


def cross_rank() -> int:
    """The index of this host among the hosts that have a member with this worker's local_rank."""
    return assignment().cross_rank


def cross_size() -> int:
    """The number of hosts that have a member with this worker's local_rank."""
    return assignment().cross_size
