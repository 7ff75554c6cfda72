"""Why something happened, as data: causes of a loss, of the end of a round or of the run, and of a wait.

The core makes and compares causes; it neither writes nor reads text. `driver.observe.cause_text` renders them.
The file is long because it is the one list of them, with the data of each.

A new cause touches four files: its kind here and in cause.proto, its words in cause_text.py, and the rule that finds
it. If an agent finds it, as the reason for a worker's end, the kind is one of AGENT_KNOWN. A detail of a new type also
needs edriver/wire/causes.py to say which of its values go over the wire.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from edriver.model.frozen import frozen
from edriver.model.ids import RoundId, Version
from edriver.model.script_error import ScriptError


class CauseKind(enum.Enum):
    """The kinds of causes. The comments give the type of the detail, if there is one."""

    __hash__ = object.__hash__  # Enum's own is Python code, and the core looks these up in every step

    # A worker was lost, or is suspected.
    EXITED = "exited"  # Exit
    KILLED = "killed"  # Exit: by a signal
    ENDED = "ended"  # its process has ended; why is known once it is reaped
    RAISED = "raised"  # ScriptError
    SILENT = "silent"  # Duration, or Silence: it has not answered for a whole lease
    STALLED = "stalled"  # Stall
    STUCK = "stuck"  # it hangs in a collective of an aborted round
    EXIT_OVERDUE = "exit-overdue"  # Duration, or Silence: its process outlived its script
    COLLECTIVES_DIFFER = "collectives-differ"  # Exit, or Mismatch: it ended of data of another collective than its own
    NEVER_TRAINED = "never-trained"  # rounds break with it, and it alone has not shown that it can train
    UNREACHABLE = "unreachable"  # AgentFault: its agent is silent
    LOST_WITH_HOST = "lost-with-host"  # AgentFault: its agent was lost
    NOT_STARTED = "not-started"  # Exit: its process could not be started
    OUT_OF_MEMORY = "out-of-memory"  # Exit: the kernel killed it
    MAYBE_OUT_OF_MEMORY = "maybe-out-of-memory"  # Exit: it was killed just when the kernel killed some process
    CHILD_OUT_OF_MEMORY = "child-out-of-memory"  # MemoryKill: the kernel killed a process that it had started

    # There is a round, or a round has ended, and no worker is lost yet.
    RUN_BEGAN = "run-began"  # the run's first round
    COLLECTIVE_FAILED = "collective-failed"
    PEER_UNPROVEN = "peer-unproven"  # ReportedText: another process took a member's place in a connection
    LEFT_ROUND = "left-round"  # a member returned to waiting without an order
    NO_ANSWER = "no-answer"  # Unanswered: members have not answered a notice
    BOUNDARY_MISSED = "boundary-missed"  # BoundaryMissed: members have not come to the agreed boundary
    BOUNDARIES_DIFFER = "boundaries-differ"  # some members were done beyond the agreed boundary
    UNEVEN_STEPS = "uneven-steps"  # UnevenSteps
    MEMBERS_CHANGE = "members-change"  # Change
    RESIZE_FAILED = "resize-failed"  # FailedResize: also of a run that ends of it
    ALL_DONE = "all-done"  # Done

    # The run has ended.
    SUCCESS = "success"
    STOPPED = "stopped"  # ReportedText: by an operator
    SOURCE_UNUSABLE = "source-unusable"  # ReportedText: the host source or the broker cannot work as configured
    FAILED_LATE = "failed-late"  # CausedBy: a worker failed after training was done
    STATE_LOST = "state-lost"  # RaisedByAll, if that is why; ReportedText: the positions that are lost, if not all are
    STATES_DIFFER = "states-differ"  # Digests
    COLLECTIVES_BROKEN = "collectives-broken"  # Tracebacks
    SAME_ERROR = "same-error"  # RepeatedError
    SAME_STALL = "same-stall"  # RepeatedStall
    BUDGET_SPENT = "budget-spent"  # LimitExceeded
    TOO_FEW_SLOTS = "too-few-slots"  # Shortage
    START_FAILED = "start-failed"  # every worker failed before training began
    UNPROVEN_CONNECTIONS = "unproven-connections"  # TimedOut: they have ended every round
    TIMED_OUT = "timed-out"  # TimedOut

    # The run waits, or trains.
    ROUND_RUNS = "round-runs"  # Members
    WORKERS_AWAITED = "workers-awaited"  # Shortage
    HOLDER_AWAITED = "holder-awaited"  # Version
    BOOT_AWAITED = "boot-awaited"
    SUSPECTS_AWAITED = "suspects-awaited"
    SURVIVORS_AWAITED = "survivors-awaited"
    RUN_CALL_AWAITED = "run-call-awaited"  # Duration: no worker has called edriver.run since the start
    PAUSE_AWAITED = "pause-awaited"  # the one after unproven connections
    ATTRIBUTES_DIFFER = "attributes-differ"  # Digests: of members at one boundary of a round
    LEFT_ALONE = "left-alone"  # CauseList: suspected workers that the run depends on
    LONG_WORK = "long-work"  # RepeatedStall: from now on such work has more time
    SIZE_REFUSED = "size-refused"  # RefusedSize: a number of workers is not tried again

    # A host or a slot is used, or is not.
    HOST_ADDED = "host-added"  # Count: its slots
    HOST_REMOVED = "host-removed"  # discovery no longer names it
    HOST_RESIZED = "host-resized"  # Count: its slots from now on
    HOST_LOST = "host-lost"  # AgentFault
    HOST_UNUSED = "host-unused"  # AgentFault: its agent could not be started, or is silent
    HOST_UNANSWERED = "host-unanswered"  # its first agent has not connected yet
    DRAINED = "drained"  # DrainTarget
    UNDRAINED = "undrained"  # SlotTarget
    SLOTS_DRAINED = "slots-drained"  # Count
    SLOTS_COOLING = "slots-cooling"  # Count
    SLOTS_SPARE = "slots-spare"  # SpareSlots
    SLOTS_UNFIT = "slots-unfit"  # UnfitSlots
    HOST_QUARANTINED = "host-quarantined"  # HostQuarantine, when it begins
    SLOT_QUARANTINED = "slot-quarantined"  # SlotQuarantine
    COOLDOWN_OVER = "cooldown-over"  # SlotTarget
    QUARANTINE_WAIVED = "quarantine-waived"  # Count: --min-np
    DISCOVERY_FAILED = "discovery-failed"  # ReportedText
    RESIZED = "resized"  # Count: most workers from now on
    DRIVER_RESUMED = "driver-resumed"  # Count: which driver of the run it is
    NO_BOUNDARY = "no-boundary"  # NoBoundary: the worker's script trains without
    NOT_FINITE = "not-finite"  # NotFinite: a value that the worker's script reports
    SAME_SAMPLES = "same-samples"  # SameSamples: two ranks train on the same
    SOURCE_DIFFERS = "source-differs"  # ReportedText: which files of the worker's script, and when they were changed
    HOST_UNSTEADY = "host-unsteady"  # Count: changes of it in discovery's latest answers
    OUTPUT_OMITTED = "output-omitted"  # Count: lines of the host's workers that are left out
    OUTPUT_UNWRITTEN = "output-unwritten"  # ReportedText: which file of the host's workers cannot be written, and why
    CHECKPOINT_UNCOPIED = "checkpoint-uncopied"  # ReportedText: why a copy for the host's memory could not be fetched
    CHECKPOINT_UNWRITTEN = "checkpoint-unwritten"  # ReportedText: why a checkpoint in memory could not go to disk
    SAVE_MISSED = "save-missed"  # ReportedText: which rank of the host has not saved a step that others have
    SAVE_UNMET = "save-unmet"  # the run ends before the checkpoint is on disk that the requester has asked for
    UNWRITTEN = "unwritten"  # ReportedText: which file of the run cannot be written, and why
    DRIVER_PAUSED = "driver-paused"  # Duration: for how long the driver stood still
    CLOCK_SET = "clock-set"  # Duration: by how much the clock of its machine was set forward; below 0: back


AGENT_KNOWN: Final = frozenset({CauseKind.NOT_STARTED, CauseKind.OUT_OF_MEMORY, CauseKind.MAYBE_OUT_OF_MEMORY})
"""What an agent can know of a worker's end. The detail is an Exit."""

_OUTER_SIGNALS: Final = (-signal.SIGKILL, -signal.SIGTERM)


class RoundEnd(enum.Enum):
    """The kinds of end of a round. Each but DONE has its own budget."""

    FAILURE = "failure"  # a worker was lost, or a collective broke
    PREEMPTION = "preemption"  # members' places are taken away
    RESIZE = "resize"  # any other change of the members, and its consequences
    UNPROVEN = "unproven"  # a connection did not prove to lead to a member
    DONE = "done"


class WorkerName(NamedTuple):
    """A worker by everything an operator may know it by; without a rank it never was in a round."""

    worker_id: int
    host: str
    slot: int
    rank: int | None


@frozen
class ReportedText:
    """Text from outside: of an agent, a worker, the operator or a tool."""

    text: str


class AgentFaultKind(enum.Enum):
    """What is wrong with a host's agent."""

    ENDED = "ended"  # it could not be started, or its process has ended: `reason` is its launcher's
    NEVER_ANSWERED = "never-answered"  # since its start, for `seconds`
    SILENT = "silent"  # for `seconds`
    OTHER_RELEASE = "other-release"  # of edriver, with another protocol: `reason`
    OVERLOADED = "overloaded"  # it does not accept orders


@frozen
class AgentFault:
    """What is wrong with a host's agent: with the launcher's explanation or the agent's release, or for how long."""

    kind: AgentFaultKind
    reason: str = ""
    seconds: float = 0.0


@frozen
class Exit:
    """How a process ended.

    Attributes:
        code: its exit code; negative: the signal that ended it.
        reason: the operating system's error, if the process could not be started.
        memory_limit: the memory limit of its cgroup, in bytes; None: unknown, or no limit.
        recorded: the exception in the error file of its script; None: no such file.
        place: where in the script it crashed; None: it did not, or that is not known.
    """

    code: int
    reason: str = ""
    memory_limit: int | None = None
    recorded: ScriptError | None = None
    place: ScriptError | None = None


@frozen
class Mismatch:
    """A process has ended because ranks called different collectives.

    Attributes:
        code: see Exit.
        place: where in the script it was; None: not known.
        others: where other members were, one for each place.
    """

    code: int
    place: ScriptError | None
    others: tuple[tuple[WorkerName, ScriptError], ...]


@frozen
class MemoryKill:
    """The kernel has killed a process, or maybe another one of its host. Pid 0: unknown; memory_limit as in Exit."""

    pid: int
    memory_limit: int | None = None
    uncertain: bool = False


@frozen
class Duration:
    """A span of time, in seconds."""

    seconds: float


class Halt(enum.Enum):
    """What keeps a whole process from running."""

    STOPPED = "stopped"  # a signal: SIGSTOP, or Ctrl-Z in its terminal
    TRACED = "traced"  # a debugger
    FROZEN = "frozen"  # its cgroup is frozen: its container is paused


@frozen
class Silence:
    """The seconds for which a worker has given no sign of life, and what keeps its process from running."""

    seconds: float
    halt: Halt


@frozen
class Stall:
    """A worker makes no progress.

    Attributes:
        phase: the phase in which it makes none.
        seconds: for how long.
        place: where in the script it is; None: not known.
    """

    phase: str
    seconds: float
    place: ScriptError | None = None


@frozen
class Unanswered:
    """Workers that have not answered within `seconds`."""

    seconds: float
    workers: tuple[WorkerName, ...]


@frozen
class BoundaryMissed:
    """Workers that have not reached this boundary in time."""

    boundary: int
    workers: tuple[WorkerName, ...]


@frozen
class StepGroup:
    """Workers that have passed the same number of boundaries: some by name, and the number of the others."""

    boundaries: int
    workers: tuple[WorkerName, ...]
    more: int


@frozen
class UnevenSteps:
    """Which members are done, which have stopped as agreed, and which wait for them in a collective.

    Attributes:
        done: members whose training function has returned.
        stopped: workers that have left the round at the agreed boundary.
        waiting: members that wait.
        busy: the number of other members, which still work.
        again: whether the previous round ended in the same way.
        idle: members whose scripts are idle elsewhere, in restart mode.
    """

    done: tuple[StepGroup, ...]
    stopped: tuple[StepGroup, ...]
    waiting: tuple[StepGroup, ...]
    busy: int
    again: bool = False
    idle: tuple[StepGroup, ...] = ()


@frozen
class Change:
    """Workers join a round, or leave it.

    Attributes:
        joined: the number of those that join,
        left: and of those that leave.
        hosts: hosts of those that join, some by name,
        more_hosts: and the number of the others.
        reasons: why workers leave, or may join: what has become of hosts and slots, and what an operator has requested,
        more_reasons: and the number of further reasons.
    """

    joined: int
    left: int
    hosts: tuple[str, ...] = ()
    more_hosts: int = 0
    reasons: tuple[Cause, ...] = ()
    more_reasons: int = 0


@frozen
class FailedResize:
    """The script has failed in the first round of a new size, or the run has ended because of that.

    Attributes:
        size: the number of workers.
        before: the number of workers with which the script has trained.
        cause: how it has failed.
    """

    size: int
    before: int
    cause: Cause


@frozen
class RefusedSize:
    """A number of workers with which the script cannot train.

    Attributes:
        size: that number.
        back: the number with which the run continues.
        error: what the script has raised; None: its process has ended without an exception that is known.
    """

    size: int
    back: int
    error: ScriptError | None


@frozen
class Done:
    """The smallest and the largest number of boundaries that a member had passed."""

    fewest: int
    most: int


@frozen
class CausedBy:
    """The cause that led to this one."""

    cause: Cause


@frozen
class CauseList:
    """Some causes, and the number of further ones."""

    causes: tuple[Cause, ...]
    more: int = 0


@frozen
class TimedOut:
    """The limit in seconds (--elastic-timeout), and what was waited for."""

    seconds: float
    cause: Cause | None


@frozen
class RaisedByAll:
    """An error that all members raised, and the number of members."""

    error: ScriptError
    workers: int


@frozen
class RepeatedError:
    """An error, the number of rounds without progress between them in which it was raised, and the slots."""

    error: ScriptError
    rounds: int
    places: tuple[tuple[str, int], ...]


@frozen
class RepeatedStall:
    """Members that have stalled in one function of the script's.

    Attributes:
        place: where the last of them stood.
        times: how often that has happened.
        limit: seconds that such work may take from now on.
    """

    place: ScriptError
    times: int
    limit: float


@frozen
class Digests:
    """The digests of holders of one version, where they differ; one worker for each digest."""

    version: Version
    digests: tuple[tuple[WorkerName, str], ...]


@frozen
class Tracebacks:
    """Collectives that failed in one round after the other at this version, with the workers' tracebacks."""

    version: Version
    raised: tuple[tuple[WorkerName, str], ...]


@frozen
class LimitExceeded:
    """More rounds ended for one kind of cause than may.

    Attributes:
        end: the kind of cause.
        limit: maximum number within the window.
        total, recent: number in the whole run, and within the window.
        window: length of the window, in seconds.
        last: the cause for which the last one ended.
    """

    end: RoundEnd
    limit: int
    total: int
    recent: int
    window: float
    last: Cause


@frozen
class Shortage:
    """A lack of workers or slots.

    Attributes:
        found: number of workers that are ready, or of usable slots.
        needed: number that the run needs.
        seconds: the time limit in seconds; 0: no limit yet.
        state_keeper: whether a worker without a slot keeps the state meanwhile.
        troubles: why hosts and slots are not used.
    """

    found: int
    needed: int
    seconds: float = 0.0
    state_keeper: bool = False
    troubles: tuple[Cause, ...] = ()


@frozen
class Members:
    """A round: its id, its number of members, and their hosts.

    Attributes:
        steps_lost: number of steps of earlier rounds that it repeats.
        torn: why, in a worker's words; empty if it has been reported.
        checkpoint: the steps of the checkpoint that it begins from; 0: it begins from none.
        in_memory: whether that checkpoint is in the memory of hosts.
        replica_size: the number of workers in a replica, as in Settings.
    """

    round_id: RoundId
    size: int
    hosts: tuple[str, ...]
    steps_lost: int = 0
    torn: str = ""
    checkpoint: int = 0
    in_memory: bool = False
    replica_size: int = 1


@frozen
class SlotTarget:
    """A slot of the cause's host; None: all of the host."""

    slot: int | None


@frozen
class DrainTarget:
    """What is drained, as in SlotTarget, and the reason; empty: none was given."""

    slot: int | None
    reason: str


@frozen
class SlotQuarantine:
    """A slot's quarantine: its length in seconds, and the number of failures before it."""

    slot: int
    seconds: float
    failures: int


@frozen
class HostQuarantine:
    """A host's quarantine, and why the host is considered the cause of its slots' failures.

    Attributes:
        seconds: its length.
        failures: number of failures of its workers within the window.
        slots: number of its slots.
        window: length of the window, in seconds.
        elsewhere: number of failures on other hosts within the window.
        slots_elsewhere: number of slots of other hosts.
    """

    seconds: float
    failures: int
    slots: int
    window: float
    elsewhere: int
    slots_elsewhere: int


@frozen
class Count:
    """A number of things."""

    count: int


@frozen
class NoBoundary:
    """A script has made steps in a round, and passed no boundary in it.

    Attributes:
        steps: how many.
        place: the line of the script that made the last one; empty: unknown.
        returned: whether its training function has returned by then.
    """

    steps: int
    place: str
    returned: bool = False


@frozen
class NotFinite:
    """A value that a script has reported and that is NaN or infinite.

    Attributes:
        name: the name that it is reported under.
        value: nan, inf or -inf. Text, because NaN does not equal itself.
        place: the line of the script, as FILE:LINE (FUNCTION); empty: unknown.
        step: the step of the run in which it was reported, from 1; 0: before the first round.
    """

    name: str
    value: str
    place: str
    step: int = 0


@frozen
class SameSamples:
    """Two workers train on the same samples: theirs is the cause's worker, and another one.

    Attributes:
        source: the type of the data loader's sampler, or of its data set if that has none.
        place: the line of the script that iterates the loader; empty: unknown.
        other: the other worker.
    """

    source: str
    place: str
    other: WorkerName


@frozen
class SpareSlots:
    """Slots that are idle only because the run has its maximum number of workers.

    Attributes:
        count: number of these slots.
        most: the maximum number of workers now.
        resized: whether an operator has set it; else --max-np did.
        refused: the number of workers that there would be with them, and that is not tried again; 0: it would be.
    """

    count: int
    most: int
    resized: bool
    refused: int = 0


@frozen
class UnfitSlots:
    """Slots of a host that make up no whole replica.

    Attributes:
        count: number of these slots.
        width: the number of workers in a replica there.
        missing: how many more hosts of that size would make up a replica; 0: the slots cannot be used.
        slots: the number of slots of each such host.
    """

    count: int
    width: int
    missing: int = 0
    slots: int = 0


Detail: TypeAlias = (
    ReportedText
    | AgentFault
    | Exit
    | Mismatch
    | MemoryKill
    | Duration
    | Silence
    | Stall
    | Unanswered
    | BoundaryMissed
    | UnevenSteps
    | Change
    | FailedResize
    | RefusedSize
    | Done
    | CausedBy
    | CauseList
    | TimedOut
    | RaisedByAll
    | RepeatedError
    | RepeatedStall
    | Digests
    | Tracebacks
    | LimitExceeded
    | Shortage
    | Members
    | SlotTarget
    | DrainTarget
    | SlotQuarantine
    | HostQuarantine
    | Count
    | NoBoundary
    | NotFinite
    | SameSamples
    | SpareSlots
    | UnfitSlots
    | ScriptError
    | Version
)


@frozen
class Cause:
    """Why something happened.

    Attributes:
        kind: what it is.
        worker: the worker concerned.
        host: the host concerned, if the cause does not concern a worker.
        detail: what else is known; its type follows from the kind.
        preempted: whether slots of the worker, or of some members, were being taken away. Then no worker failed.
        requester: the operator who requested it; empty: none, or not known.
    """

    kind: CauseKind
    worker: WorkerName | None = None
    host: str | None = None
    detail: Detail | None = None
    preempted: bool = False
    requester: str = ""

    @property
    def round_end(self) -> RoundEnd:
        """What the end of a round counts as, if this is its cause."""
        if self.kind in (CauseKind.ALL_DONE, CauseKind.RUN_BEGAN):
            return RoundEnd.DONE
        if self.kind is CauseKind.PEER_UNPROVEN:
            return RoundEnd.UNPROVEN
        unagreed = RoundEnd.PREEMPTION if self.preempted else RoundEnd.FAILURE
        of_resize = self.kind in (CauseKind.MEMBERS_CHANGE, CauseKind.RESIZE_FAILED)
        return RoundEnd.RESIZE if of_resize and not self.preempted else unagreed

    @property
    def itself(self) -> bool:
        """Whether it ends a run independently of workers that failed before."""
        return self.kind in (CauseKind.UNEVEN_STEPS, CauseKind.COLLECTIVES_BROKEN, CauseKind.STATES_DIFFER)

    @property
    def killed_from_outside(self) -> bool:
        """Whether a worker without an order to end was ended by a signal that it cannot have caused itself.

        A kill by the kernel for lack of memory counts as a separate kind, also if that is only likely.
        """
        return self.kind is CauseKind.KILLED and isinstance(self.detail, Exit) and self.detail.code in _OUTER_SIGNALS

    def same_as(self, other: Cause) -> bool:
        """Whether both are equal but for what they count as."""
        if isinstance(other.detail, FailedResize):
            return self.same_as(other.detail.cause)
        return replace(self, preempted=other.preempted) == other


def explained(before: Cause, end: Cause) -> Cause:
    """A cause once a worker has been reaped: ENDED becomes the way in which its process ended; another one stays.

    Args:
        before: the cause.
        end: why the worker was lost, as its exit tells.
    """
    if before.kind is not CauseKind.ENDED or before.worker is None or end.worker is None:
        return before
    if before.worker.worker_id != end.worker.worker_id:
        return before
    return replace(end, worker=before.worker, preempted=before.preempted)
