"""Why something happened, as data: what the core says of a loss, of the end of a round or of the run, and of a wait.

The core makes causes and compares them; it never makes a sentence of one, nor reads one. `driver.observe.cause_text`
puts them into words.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from edriver.common.ids import RoundId, Version
from edriver.driver.core.failures.script_error import ScriptError


class CauseKind(enum.Enum):
    """What a cause is; behind it what its detail is, if it has one."""

    # A worker was lost, or is suspected.
    EXITED = "exited"  # Exit
    KILLED = "killed"  # Exit: by a signal
    ENDED = "ended"  # its process has ended; why is known once it is reaped
    RAISED = "raised"  # ScriptError
    SILENT = "silent"  # Duration: it has not answered for a whole lease
    STALLED = "stalled"  # Stall
    STUCK = "stuck"  # it sits in a collective of an aborted round
    OUTSTAYED = "outstayed"  # Duration: its process outlived its script
    UNREACHABLE = "unreachable"  # AgentFault: its agent is silent
    LOST_WITH_HOST = "lost-with-host"  # AgentFault: its agent was lost
    NOT_STARTED = "not-started"  # Exit: its process could not be started
    OUT_OF_MEMORY = "out-of-memory"  # Exit: the kernel killed it
    MAYBE_OUT_OF_MEMORY = "maybe-out-of-memory"  # Exit: it was killed just when the kernel killed some process

    # There is a round, or a round has ended, and no worker is lost yet.
    RUN_BEGAN = "run-began"  # the run's first round
    COLLECTIVE_FAILED = "collective-failed"
    PEER_UNPROVEN = "peer-unproven"  # ReportedText: another process took a member's place in a connection
    LEFT_ROUND = "left-round"  # a member went back to waiting on its own
    NO_ANSWER = "no-answer"  # Unanswered: members have not answered a notice
    BOUNDARY_MISSED = "boundary-missed"  # BoundaryMissed: members have not come to the agreed boundary
    BOUNDARIES_DIFFER = "boundaries-differ"  # some members were done beyond the agreed boundary
    UNEVEN_STEPS = "uneven-steps"  # UnevenSteps
    MEMBERS_CHANGE = "members-change"  # Change
    ALL_DONE = "all-done"  # Done

    # The run has ended.
    SUCCESS = "success"
    STOPPED = "stopped"  # ReportedText: the operator wants it
    SOURCE_UNUSABLE = "source-unusable"  # ReportedText: discovery cannot be used as it was asked for
    FAILED_LATE = "failed-late"  # CausedBy: a worker failed after training was done
    STATE_LOST = "state-lost"  # RaisedByAll, if that is why
    STATES_DIFFER = "states-differ"  # Digests
    COLLECTIVES_BROKEN = "collectives-broken"  # Tracebacks
    SAME_ERROR = "same-error"  # RepeatedError
    BUDGET_SPENT = "budget-spent"  # LimitExceeded
    TOO_FEW_SLOTS = "too-few-slots"  # Shortage
    START_FAILED = "start-failed"  # every worker failed before training began
    UNPROVEN_CONNECTIONS = "unproven-connections"  # TimedOut: they have ended every round
    TIMED_OUT = "timed-out"  # TimedOut

    # The run waits, or goes on.
    ROUND_RUNS = "round-runs"  # Members
    WORKERS_AWAITED = "workers-awaited"  # Shortage
    HOLDER_AWAITED = "holder-awaited"  # Version
    BOOT_AWAITED = "boot-awaited"
    SUSPECTS_AWAITED = "suspects-awaited"
    SURVIVORS_AWAITED = "survivors-awaited"
    RUN_CALL_AWAITED = "run-call-awaited"  # Duration: no worker has called edriver.run for so long since the start
    PAUSE_AWAITED = "pause-awaited"  # the one after unproven connections
    ATTRIBUTES_DIFFER = "attributes-differ"  # Digests: of members at a round's first boundary
    LEFT_ALONE = "left-alone"  # CauseList: suspected workers that the run depends on

    # A host or a slot is used, or is not.
    HOST_ADDED = "host-added"  # Count: its slots
    HOST_REMOVED = "host-removed"  # discovery no longer names it
    HOST_RESIZED = "host-resized"  # Count: its slots from now on
    HOST_LOST = "host-lost"  # AgentFault
    HOST_UNUSED = "host-unused"  # AgentFault: its agent could not be started, or is silent
    HOST_UNANSWERED = "host-unanswered"  # its first agent is on its way
    DRAINED = "drained"  # DrainTarget
    UNDRAINED = "undrained"  # SlotTarget
    SLOTS_DRAINED = "slots-drained"  # Count
    SLOTS_COOLING = "slots-cooling"  # Count
    SLOTS_SPARE = "slots-spare"  # SpareSlots
    HOST_QUARANTINED = "host-quarantined"  # HostQuarantine, when it begins
    SLOT_QUARANTINED = "slot-quarantined"  # SlotQuarantine
    COOLDOWN_OVER = "cooldown-over"  # SlotTarget
    QUARANTINE_WAIVED = "quarantine-waived"  # Count: --min-np
    DISCOVERY_FAILED = "discovery-failed"  # ReportedText
    RESIZED = "resized"  # Count: most workers from now on


class RoundEnd(enum.Enum):
    """What the end of a round counts as. Each but DONE has a budget of its own."""

    FAILURE = "failure"  # a worker was lost, or a collective broke
    PREEMPTION = "preemption"  # members' places are taken away
    RESIZE = "resize"  # any other change of the members
    UNPROVEN = "unproven"  # a connection did not prove to lead to a member
    DONE = "done"


class WorkerName(NamedTuple):
    """A worker by everything an operator may know it by; without a rank it never was in a round."""

    worker_id: int
    host: str
    slot: int
    rank: int | None


@dataclass(frozen=True, slots=True)
class ReportedText:
    """Text from outside: of an agent, a worker, the operator or a tool."""

    text: str


class AgentFaultKind(enum.Enum):
    """What is wrong with a host's agent."""

    ENDED = "ended"  # it could not be started, or its process has ended: what its launcher says
    NEVER_ANSWERED = "never-answered"  # since its start, for so many seconds
    SILENT = "silent"  # for so many seconds
    OTHER_RELEASE = "other-release"  # of edriver: which
    OVERLOADED = "overloaded"  # it takes no orders


@dataclass(frozen=True, slots=True)
class AgentFault:
    """What is wrong with a host's agent.

    Attributes:
        kind: what it is.
        reason: what its launcher says, or its release.
        seconds: for how long.
    """

    kind: AgentFaultKind
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    Attributes:
        code: its exit code; negative: the signal that ended it.
        reason: what the operating system says of a process that could not be started.
        memory_limit: bytes that its cgroup may use; None: not known, or without a limit.
        recorded: the exception in the error file that its script has written; None: there is none.
    """

    code: int
    reason: str = ""
    memory_limit: int | None = None
    recorded: ScriptError | None = None


@dataclass(frozen=True, slots=True)
class Duration:
    """For how long, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """In which phase a worker has made no progress, and for how many seconds."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Who has not answered within so many seconds."""

    seconds: float
    workers: tuple[WorkerName, ...]


@dataclass(frozen=True, slots=True)
class BoundaryMissed:
    """Who has not come to this boundary in time."""

    boundary: int
    workers: tuple[WorkerName, ...]


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Workers that have passed this many boundaries: the first of them, and how many more there are."""

    boundaries: int
    workers: tuple[WorkerName, ...]
    more: int


@dataclass(frozen=True, slots=True)
class UnevenSteps:
    """Who is done, who has stopped as agreed, who waits for them in a collective.

    Attributes:
        done: members whose training function has returned.
        stopped: workers that have left the round at the agreed boundary.
        waiting: members that wait.
        busy: how many others still work.
        again: whether the round before ended so, too.
    """

    done: tuple[StepGroup, ...]
    stopped: tuple[StepGroup, ...]
    waiting: tuple[StepGroup, ...]
    busy: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """How many workers come into a round, and how many leave."""

    joined: int
    left: int


@dataclass(frozen=True, slots=True)
class Done:
    """The fewest and the most boundaries that a member had passed."""

    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class CausedBy:
    """What led to it."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class CauseList:
    """Causes of one kind or another, the first of them, and how many more there are."""

    causes: tuple[Cause, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class TimedOut:
    """After how many seconds (--elastic-timeout), and of what."""

    seconds: float
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class RaisedByAll:
    """An error that each of so many members raised."""

    error: ScriptError
    workers: int


@dataclass(frozen=True, slots=True)
class RepeatedError:
    """An error that was raised in so many rounds in a row, and in which slots."""

    error: ScriptError
    rounds: int
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of holders of one version, where they differ; one worker for each digest."""

    version: Version
    digests: tuple[tuple[WorkerName, str], ...]


@dataclass(frozen=True, slots=True)
class Tracebacks:
    """Collectives that failed in one round after the other at this version, with the workers' tracebacks."""

    version: Version
    raised: tuple[tuple[WorkerName, str], ...]


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """How many rounds ended so, more than may.

    Attributes:
        end: how they ended.
        limit: most that may.
        total: how many did in all,
        recent: and within the window,
        window: which is so many seconds long.
        last: of what the last one ended.
    """

    end: RoundEnd
    limit: int
    total: int
    recent: int
    window: float
    last: Cause


@dataclass(frozen=True, slots=True)
class Shortage:
    """What there is too little of.

    Attributes:
        found: workers that are ready, or usable slots.
        needed: how many have to be.
        seconds: within how many of them; 0: there is no limit yet.
        state_keeper: whether a worker without a slot keeps the state meanwhile.
        troubles: why hosts and slots are not used.
    """

    found: int
    needed: int
    seconds: float = 0.0
    state_keeper: bool = False
    troubles: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class Members:
    """A round.

    Attributes:
        round_id: its id.
        size: how many members it has,
        hosts: and on which hosts.
        steps_lost: steps of earlier rounds that it makes again.
        torn: why, where that has not been said yet: in a worker's words.
    """

    round_id: RoundId
    size: int
    hosts: tuple[str, ...]
    steps_lost: int = 0
    torn: str = ""


@dataclass(frozen=True, slots=True)
class SlotTarget:
    """A slot of the cause's host; None: all of the host."""

    slot: int | None


@dataclass(frozen=True, slots=True)
class DrainTarget:
    """What is drained, as in Place, and who wants it."""

    slot: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SlotQuarantine:
    """For how many seconds a slot rests, after so many failures."""

    slot: int
    seconds: float
    failures: int


@dataclass(frozen=True, slots=True)
class HostQuarantine:
    """For how many seconds a host rests, and why it is taken for the cause of its slots' failures.

    Attributes:
        seconds: of rest.
        failures: of its workers,
        slots: in how many slots,
        window: within how many seconds,
        elsewhere: against so many on other hosts,
        slots_elsewhere: in their slots.
    """

    seconds: float
    failures: int
    slots: int
    window: float
    elsewhere: int
    slots_elsewhere: int


@dataclass(frozen=True, slots=True)
class Count:
    """How many."""

    count: int


@dataclass(frozen=True, slots=True)
class SpareSlots:
    """Slots that nothing keeps from being used but the most workers that a run may have.

    Attributes:
        count: how many.
        most: how many workers the run may have now.
        resized: whether an operator has asked for that; else --max-np has.
    """

    count: int
    most: int
    resized: bool


Detail: TypeAlias = (
    ReportedText
    | AgentFault
    | Exit
    | Duration
    | Stall
    | Unanswered
    | BoundaryMissed
    | UnevenSteps
    | Change
    | Done
    | CausedBy
    | CauseList
    | TimedOut
    | RaisedByAll
    | RepeatedError
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
    | SpareSlots
    | ScriptError
    | Version
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something happened.

    Attributes:
        kind: what it is.
        worker: the worker in question.
        host: the host in question, where it is not a worker's affair.
        detail: what else is known; its type follows from the kind.
        preempted: whether the worker's place, or some members' places, were being taken away: then no worker failed.
    """

    kind: CauseKind
    worker: WorkerName | None = None
    host: str | None = None
    detail: Detail | None = None
    preempted: bool = False

    @property
    def round_end(self) -> RoundEnd:
        """What the end of a round counts as that ends of this."""
        if self.kind in (CauseKind.ALL_DONE, CauseKind.RUN_BEGAN):
            return RoundEnd.DONE
        if self.kind is CauseKind.PEER_UNPROVEN:
            return RoundEnd.UNPROVEN
        if self.preempted:
            return RoundEnd.PREEMPTION
        return RoundEnd.RESIZE if self.kind is CauseKind.MEMBERS_CHANGE else RoundEnd.FAILURE

    @property
    def itself(self) -> bool:
        """Whether a run that ends of this does so whatever workers have failed before."""
        return self.kind in (CauseKind.UNEVEN_STEPS, CauseKind.COLLECTIVES_BROKEN, CauseKind.STATES_DIFFER)

    def same_as(self, other: Cause) -> bool:
        """Whether both say one and the same, whatever they count as."""
        return replace(self, preempted=other.preempted) == other
