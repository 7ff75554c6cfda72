"""What the driver must do: the only output of `Membership.step`. The names are imperatives."""

from __future__ import annotations

import enum

from edriver.model.cause import Cause, WorkerName
from edriver.model.frozen import frozen
from edriver.model.hosts import HostUpdateResult
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, DiskWrite, ShardCopy
from edriver.model.plan import RoundPlan


@frozen
class StartAgent:
    """Start an agent on a host. Answered by AgentConnected or AgentLost with this agent_id."""

    host: str
    agent_id: int


@frozen
class StopAgent:
    """End a host's agent: discovery no longer names the host, and it has no workers left."""

    host: str
    agent_id: int


@frozen
class AbandonAgent:
    """Give up a silent agent and its workers: its messages are ignored from now on, and it is killed where possible."""

    host: str
    agent_id: int
    cause: Cause


@frozen
class StartWorker:
    """Start a worker in a slot. Answered by WorkerWaiting or WorkerExited.

    Attributes:
        worker_id: its id.
        host: where,
        slot: and in which slot.
        background: whether others train meanwhile, and go before it until it is ready.
        position: its position in a replica, for life, or any of them if all workers of a round are one replica,
        replica_size: and the number of workers in one. 0 if no others train meanwhile, who would wait in its first
            round for what it can do before.
    """

    worker_id: int
    host: str
    slot: int
    background: bool
    position: int = 0
    replica_size: int = 0


@frozen
class StopWorker:
    """Terminate a worker's process group: SIGTERM, and SIGKILL after `grace` seconds (0: at once)."""

    worker_id: int
    host: str
    grace: float


@frozen
class HostsUpdated:
    """Begin an agreed interrupt, for the members are to change; each answers at once with BoundaryReached of the same
    number, and StopAt or GoOn ends it.
    """

    workers: tuple[int, ...]
    round_id: RoundId
    number: int
    result: HostUpdateResult


@frozen
class StopAt:
    """The verdict of an interrupt: every member stops at this boundary of the round."""

    workers: tuple[int, ...]
    round_id: RoundId
    number: int
    boundary: int
    cause: Cause


@frozen
class GoOn:
    """The verdict of an interrupt whose cause has disappeared: no member stops."""

    workers: tuple[int, ...]
    round_id: RoundId
    number: int


@frozen
class Abort:
    """Break the round's collectives: a member is lost. Every member rejoins with the version it can offer."""

    workers: tuple[int, ...]
    round_id: RoundId
    cause: Cause


@frozen
class Finish:
    """All members are done: their `run` returns."""

    workers: tuple[int, ...]
    round_id: RoundId
    cause: Cause


@frozen
class Leave:
    """A waiting worker has no place any more: it exits with 0."""

    worker_id: int


@frozen
class Skip:
    """A newcomer is behind: its `run` call of this ordinal returns None at once."""

    worker_id: int
    ordinal: int


@frozen
class FindNewestCheckpoint:
    """Workers that wait look for the newest checkpoint once more: all that held state are lost. Each answers with
    WorkerWaiting.
    """

    workers: tuple[int, ...]


@frozen
class SaveCheckpoint:
    """Rank 0 of a round in elastic mode writes a checkpoint of its next boundary.

    Attributes:
        worker_id: the worker.
        round_id: the round.
        number: of the request, which CheckpointWritten has once it is met.
    """

    worker_id: int
    round_id: RoundId
    number: int


@frozen
class KeepCheckpoints:
    """What a host's checkpoint server keeps from now on, and copies from others; all else it may forget.

    Attributes:
        host: the host.
        newest: the newest checkpoint that is whole: newer shards are kept, too.
        keep: the checkpoints to keep, ascending.
        copies: the shards that it is to fetch, or has fetched, by rank.
        disk: the part of a checkpoint that it is to write to disk; None: nothing.
    """

    host: str
    newest: CheckpointId
    keep: tuple[CheckpointId, ...]
    copies: tuple[ShardCopy, ...] = ()
    disk: DiskWrite | None = None


@frozen
class Explain:
    """Report what the run does or waits for, when that changes, and each quarantine and its end."""

    cause: Cause


@frozen
class Failure:
    """What is known about a worker that failed.

    Attributes:
        worker: the worker.
        cause: how it was lost.
        traceback: the exception that left the training function, if it reported one; else that of its error file.
        tail: its last lines of output.
        recorded_time: when the exception was recorded, according to its error file, in seconds since the epoch; 0: not
            known.
    """

    worker: WorkerName
    cause: Cause
    traceback: str = ""
    tail: str = ""
    recorded_time: float = 0.0


class RunEnd(enum.Enum):
    """How a run has ended."""

    DONE = "done"  # the members of the last round were done, and every process then ended with 0
    STOPPED = "stopped"  # by an operator
    FAILED = "failed"


@frozen
class FinishRun:
    """End the run: stop all that is left and exit.

    Attributes:
        end: how it has ended,
        cause: and why.
        failures: the failures that led to it, root cause first; if `cause.itself`, the failures before it.
    """

    end: RunEnd
    cause: Cause
    failures: tuple[Failure, ...] = ()


Action = (
    StartAgent
    | StopAgent
    | AbandonAgent
    | StartWorker
    | StopWorker
    | HostsUpdated
    | StopAt
    | GoOn
    | SaveCheckpoint
    | Abort
    | RoundPlan
    | Finish
    | Leave
    | Skip
    | FindNewestCheckpoint
    | KeepCheckpoints
    | Explain
    | FinishRun
)
