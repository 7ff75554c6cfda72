"""What happens to a run: the only input of `Membership.step`. The names are past participles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from edriver.model.cause import (
    AgentFault,
    Cause,
    CauseKind,
    Duration,
    Exit,
    Halt,
    NoBoundary,
    NotFinite,
    Silence,
    Stall,
    WorkerName,
)
from edriver.model.frozen import frozen
from edriver.model.hosts import HostSet
from edriver.model.ids import RoundId, Version
from edriver.model.memory_checkpoint import DiskReport, Shard
from edriver.model.mode import CheckpointWay
from edriver.model.script_error import ScriptError, script_error, script_place
from edriver.model.shards import HeldShards
from edriver.model.store_address import StoreAddress


@frozen
class HostsObserved:
    """Discovery's answer changed; hosts are in order of age."""

    hosts: HostSet


@frozen
class DiscoveryFailed:
    """Discovery fails while no hosts are known."""

    reason: str


@frozen
class AgentConnected:
    """A host's agent has dialled in and takes orders; or it was silent and sends messages again.

    Attributes:
        host: the host.
        agent_id: its agent.
        processors: names the processors that its workers compute with; hosts of which it is the same share them. Empty:
            not known, or as before.
    """

    host: str
    agent_id: int
    processors: str = ""


@frozen
class AgentLost:
    """A host's agent could not be started, or has exited. Its workers are lost with it."""

    host: str
    agent_id: int
    fault: AgentFault


@frozen
class AgentSilent:
    """A host's agent has sent nothing for a whole lease. It and its workers may live."""

    host: str
    agent_id: int
    fault: AgentFault


@frozen
class CheckpointsHeld:
    """A host's checkpoint server says which shards of checkpoints it holds.

    Attributes:
        host: the host.
        agent_id: its agent.
        address: where the server's ShardService listens.
        shards: those that are committed.
        used: bytes of memory that it uses,
        limit: and may use.
        trouble: why the last copy that was ordered could not be made; empty: it could.
        disk: how far it is with the last part of a checkpoint that it was to write to disk; None: there was none.
    """

    host: str
    agent_id: int
    address: str
    shards: tuple[Shard, ...] = ()
    used: int = 0
    limit: int = 0
    trouble: str = ""
    disk: DiskReport | None = None


@frozen
class CheckpointServerEnded:
    """A host's checkpoint server has ended, and what it held in memory is lost.

    Attributes:
        host: the host.
        agent_id: its agent.
    """

    host: str
    agent_id: int


@frozen
class WorkerWaiting:
    """A worker entered `edriver.run`, or left a round that ended: it is ready for the next one.

    Attributes:
        worker_id: the worker.
        ordinal: which `run` call of the script it is in, from 1.
        version: the state that it can offer.
        store: where its store listens, should it become rank 0.
        digest: a text of the small parts of the state it offers: the same for all holders of one version.
        steps_lost: boundaries that it had passed beyond that state,
        torn: and why it could not go back to the last of them; empty: it could.
        checkpoint: the steps of the newest whole checkpoint that it can load; 0: none is ahead of its state, or it
            holds state of this call; None: its state has no checkpoints.
        left_at: where its script was when it left its round for the loss of a peer; None: it did not, or not known.
        sealed: the version that it reaches with gradients that it has kept; None: it has kept none.
        gradient_norm: the norm by which the gradients of the step that led to `version` were clipped; None: the seal of
            that step carried no norm, or it is not known.
        shards: what it holds of that version, the latest sharding first, if all workers of a round hold the state once
            between them; `sealed` is of that sharding.
    """

    worker_id: int
    ordinal: int
    version: Version
    store: StoreAddress
    digest: str
    steps_lost: int = 0
    torn: str = ""
    checkpoint: int | None = None
    left_at: ScriptError | None = None
    sealed: Version | None = None
    gradient_norm: float | None = None
    shards: tuple[HeldShards, ...] = ()


@frozen
class BoundaryReached:
    """A member's answer to HostsUpdated: the number of the round's boundaries it had passed when the notice arrived.

    In restart mode it also says how its script can be asked for a checkpoint.
    """

    worker_id: int
    round_id: RoundId
    number: int
    boundaries: int
    way: CheckpointWay = CheckpointWay.NONE


@frozen
class CheckpointSaved:
    """A member in restart mode has had its time to save after StopAt: it may be stopped."""

    worker_id: int
    round_id: RoundId


@frozen
class CheckpointWritten:
    """A worker has written a checkpoint to disk that it had begun after this request (SaveCheckpoint.number)."""

    worker_id: int
    number: int


@frozen
class FirstBoundaryPassed:
    """A member has passed its first boundary of the round.

    Attributes:
        worker_id: the worker.
        round_id: the round.
        times: RoundTimes (notification.proto), by name, for the event log: when it reached each point on its way into
            the round, and how much it has copied.
        digest: a text of the small parts of its state at that boundary; may be empty.
    """

    worker_id: int
    round_id: RoundId
    times: Mapping[str, float]
    digest: str = ""


@frozen
class StateDigest:
    """What is small in a member's state at a later boundary of the round; some members report it, at the same ones.

    Attributes:
        worker_id: the worker.
        round_id: the round.
        boundaries: the number of boundaries that it has passed.
        digest: as in FirstBoundaryPassed.
    """

    worker_id: int
    round_id: RoundId
    boundaries: int
    digest: str


@frozen
class WorkerDone:
    """A member's training function returned after this many boundaries of the round."""

    worker_id: int
    round_id: RoundId
    boundaries: int


@frozen
class CollectiveRaised:
    """A collective failed in a member: another member is lost, or the connection to it."""

    worker_id: int
    round_id: RoundId
    traceback: str


@frozen
class PeerUnproven:
    """A connection of the round did not prove to lead to a member: another process was faster, and no member is to
    blame.
    """

    worker_id: int
    round_id: RoundId
    reason: str


@frozen
class WorkerFailed:
    """An exception of the script's own left the training function; the process is about to end.

    Attributes:
        worker_id: the worker.
        traceback: the exception.
        rejoins: whether the worker goes back to its last boundary instead, and waits for its next round: see
            RoundPlan.fallback_size.
    """

    worker_id: int
    traceback: str
    rejoins: bool = False


@frozen
class WorkerEnding:
    """A worker's process has ended, but is not reaped yet: WorkerExited, with the reason, is to follow.

    Attributes:
        worker_id: the worker.
        seen: when, in seconds since the epoch, for the event log.
    """

    worker_id: int
    seen: float = 0.0


@frozen
class ExitReason:
    """What an agent knows of a worker's end beyond its exit code.

    Attributes:
        kind: NOT_STARTED, OUT_OF_MEMORY, MAYBE_OUT_OF_MEMORY or COLLECTIVES_DIFFER.
        detail: see cause.Exit.
        memory_limit: see cause.Exit.
    """

    kind: CauseKind
    detail: str = ""
    memory_limit: int | None = None


@frozen
class RecordedError:
    """The contents of a script's error file, as torch's @record writes it.

    Attributes:
        traceback: the traceback, or else the message.
        time: when it was recorded, in seconds since the epoch; 0: unknown.
    """

    traceback: str
    time: float = 0.0


@frozen
class WorkerExited:
    """A worker's process was reaped.

    Attributes:
        worker_id: the worker.
        code: its exit code; negative: the signal that ended it.
        tail: its last lines of output, for the report of the root cause.
        reaped: when, in seconds since the epoch, for the event log.
        reason: a reason beyond the exit code that its agent knows; None: no reason.
        recorded: the contents of its error file; None: no such file.
        place: see cause.Exit.
        step: the last step that its script has made, in restart mode; 0: not known.
    """

    worker_id: int
    code: int
    tail: str = ""
    reaped: float = 0.0
    reason: ExitReason | None = None
    recorded: RecordedError | None = None
    place: ScriptError | None = None
    step: int = 0


@frozen
class LeaseExpired:
    """A worker's process is there but has not answered its agent for a whole lease.

    Attributes:
        worker_id: the worker.
        lease: that lease, in seconds.
        halt: what keeps its process from running; None: nothing that is known.
    """

    worker_id: int
    lease: float
    halt: Halt | None = None


@frozen
class ExitOverdue:
    """A worker's script has ended, and its process still exists, without a sign of life.

    Attributes:
        worker_id: the worker.
        seconds: since the last sign of life.
        halt: as in LeaseExpired.
    """

    worker_id: int
    seconds: float
    halt: Halt | None = None


@frozen
class SourceFile:
    """A file of a script's source.

    Attributes:
        name: its path below the script's folder.
        digest: of its content.
        modified: when that was changed last, in seconds since the epoch.
    """

    name: str
    digest: bytes
    modified: float


@frozen
class SourcesLoaded:
    """A worker has loaded files of its script's source. No decision depends on it."""

    worker_id: int
    files: tuple[SourceFile, ...]


@frozen
class BatchesDrawn:
    """The first batches that a worker has trained on. A mistake only if those of another one are the same.

    Attributes:
        source: the type of the data loader's sampler, or of its data set if that has none.
        place: the line of the script that iterates the loader; empty: unknown.
        digest: of the batches.
    """

    source: str
    place: str
    digest: bytes


@frozen
class ScriptWarned:
    """A worker has seen what looks like a mistake of its script. Training continues.

    Attributes:
        worker_id: the worker.
        round_id: the round that it is in.
        boundaries: the number of the round's boundaries that it has passed.
        warning: what it has seen. How far the run is, it does not know.
    """

    worker_id: int
    round_id: RoundId
    boundaries: int
    warning: NoBoundary | NotFinite | BatchesDrawn


@frozen
class WorkerQuiet:
    """A worker has not answered its agent for half of its lease."""

    worker_id: int


@frozen
class WorkerAnswered:
    """A worker whose lease had expired, or that was quiet, answers again."""

    worker_id: int


@frozen
class WorkerStuck:
    """A member's training thread hangs in a collective of an aborted round, and the member cannot free it."""

    worker_id: int
    round_id: RoundId


@frozen
class WorkerStalled:
    """A member lives and answers, but has made no progress for longer than its phase may last.

    Attributes:
        worker_id: the worker.
        round_id: the round.
        phase: what it was doing: init, step, commit, eval or save.
        seconds: for how long.
        stacks: the stack traces of its threads.
    """

    worker_id: int
    round_id: RoundId
    phase: str
    seconds: float
    stacks: str


@frozen
class WorkerIdle:
    """A script in restart mode is idle: no output, no use of a processor. It may wait for others.

    Attributes:
        worker_id: the worker.
        round_id: the round.
        seconds: for how long so far; 0: it no longer is.
    """

    worker_id: int
    round_id: RoundId
    seconds: float


@frozen
class WorkerBlocked:
    """A member waits in a collective for other members.

    Attributes:
        worker_id: the worker.
        round_id: the round.
        boundaries: boundaries of the round that it has passed.
        seconds: how long so far; 0: it continues.
    """

    worker_id: int
    round_id: RoundId
    boundaries: int
    seconds: float


@frozen
class DrainRequested:
    """A host, or one of its slots, is to be drained: not used again until UndrainRequested. By an operator, or by the
    host's agent, whose host is about to be taken away.

    Attributes:
        host: the host.
        slot: the slot; None: all of the host.
        reason: the reason, for observers.
        requester: the operator who requests it, according to their client; empty: not known, or the agent.
        within: seconds in which its workers must have left: meanwhile they train on until others can take over; 0:
            they leave at once.
        notice: whether the host's source has given notice that the host will be lost then: its workers train on as long
            as that allows, also where no other slot is free, for hosts may come.
    """

    host: str
    slot: int | None
    reason: str
    requester: str = ""
    within: float = 0.0
    notice: bool = False


@frozen
class UndrainRequested:
    """A host (slot None), or one of its slots, may be used again."""

    host: str
    slot: int | None
    requester: str = ""


@frozen
class ResizeRequested:
    """The maximum number of workers from now on; ignored unless between min_np and max_np."""

    size: int
    requester: str = ""


@frozen
class CheckpointRequested:
    """A checkpoint is to be written to disk: the newest in memory, if it is not there; in elastic mode one of a
    boundary that is yet to come.
    """

    requester: str = ""


@frozen
class StopRequested:
    """The run is to end."""

    reason: str
    requester: str = ""


@frozen
class SourceUnusable:
    """The host source, or the broker, can never work as configured. The reason is one sentence."""

    reason: str


@frozen
class DriverResumed:
    """Another driver has taken the run over, after the one before had ended; its rounds have its number.

    Attributes:
        incarnation: which driver of the run it is, from 1.
    """

    incarnation: int


@frozen
class Ticked:
    """Time has passed: a deadline of `Membership.next_deadline` may be due."""


Event = (
    HostsObserved
    | DiscoveryFailed
    | AgentConnected
    | AgentLost
    | AgentSilent
    | CheckpointsHeld
    | CheckpointServerEnded
    | WorkerWaiting
    | BoundaryReached
    | CheckpointSaved
    | CheckpointWritten
    | FirstBoundaryPassed
    | StateDigest
    | WorkerDone
    | CollectiveRaised
    | PeerUnproven
    | WorkerFailed
    | WorkerEnding
    | WorkerExited
    | LeaseExpired
    | SourcesLoaded
    | ScriptWarned
    | WorkerQuiet
    | WorkerAnswered
    | WorkerStuck
    | ExitOverdue
    | WorkerStalled
    | WorkerIdle
    | WorkerBlocked
    | DrainRequested
    | UndrainRequested
    | ResizeRequested
    | CheckpointRequested
    | StopRequested
    | SourceUnusable
    | DriverResumed
    | Ticked
)

Loss: TypeAlias = WorkerExited | WorkerEnding | WorkerFailed | LeaseExpired | WorkerStalled | WorkerStuck | ExitOverdue
"""An event that has a worker lost or suspected."""


def loss_of(event: Loss, worker: WorkerName) -> Cause:
    """Why an event has the worker lost or suspected."""
    match event:
        case WorkerExited(code=code, reason=ExitReason(kind, said, memory_limit), place=place):
            return Cause(kind, worker, detail=Exit(code, said, memory_limit, place=place))
        case WorkerExited(_, code, recorded=recorded, place=place):
            error = script_error(recorded.traceback) if recorded else None
            kind = CauseKind.KILLED if code < 0 else CauseKind.EXITED
            return Cause(kind, worker, detail=Exit(code, recorded=error, place=place))
        case WorkerEnding():
            return Cause(CauseKind.ENDED, worker)
        case WorkerFailed(_, traceback):
            return Cause(CauseKind.RAISED, worker, detail=script_error(traceback))
        case LeaseExpired(_, lease, halt):
            return Cause(CauseKind.SILENT, worker, detail=_silence(lease, halt))
        case WorkerStalled(_, _, phase, seconds, stacks):
            return Cause(CauseKind.STALLED, worker, detail=Stall(phase, seconds, script_place(stacks)))
        case WorkerStuck():
            return Cause(CauseKind.STUCK, worker)
        case ExitOverdue(_, seconds, halt):
            return Cause(CauseKind.EXIT_OVERDUE, worker, detail=_silence(seconds, halt))


def _silence(seconds: float, halt: Halt | None) -> Duration | Silence:
    return Duration(seconds) if halt is None else Silence(seconds, halt)
