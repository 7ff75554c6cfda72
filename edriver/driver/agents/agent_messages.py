"""Messages of agents, as far as these are entitled to them: events for the core, lines of output. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edriver.driver.agents.agent_identity import AgentIdentity
from edriver.driver.agents.fault_log import FaultLog
from edriver.driver.agents.registry import AgentPeer
from edriver.model import events
from edriver.model.cause import NotFinite
from edriver.model.limits import MAX_REPORTED_NAMES
from edriver.v1 import agent_pb2, notification_pb2
from edriver.wire.causes import halt_of
from edriver.wire.conversion import epoch_seconds, span_seconds
from edriver.wire.reports import checkpoints_held, event_of_report, exit_of

_OF_A_WORKER: Final = frozenset(
    {
        "worker_report",
        "worker_ending",
        "worker_exited",
        "worker_quiet",
        "lease_expired",
        "worker_answered",
        "exit_overdue",
        "memory_kill",
        "output_unwritten",
        "worker_stacks_taken",
    }
)
"""Messages of an agent about one of its workers."""

MAX_LOADED: Final = 2000
"""Contents of source files that are remembered, so that the same content from another worker is not an event."""


class AgentMessages:
    """Reads messages of connected agents, and drops what an agent reports about workers that are not its own.

    Args:
        welcome: the first message to every agent.
        on_progress: called with the progress of each worker.
        on_agent_ended: called with the id of each agent that has sent its last message.
        faults: logs what is left out.
        on_stacks: called with each answer where a worker stands.
        on_usage: called with each host and its heartbeat that says what is used there; of its workers only its own.
        on_memory_kill: called with each kill of a process that a worker had started.
        on_output_unwritten: called with the host of each file of a worker's output that cannot be written.
        on_modules_imported: called with what a worker in restart mode has imported.
        on_environment_copy: called with each host and how far its copy of the Python environment is.
    """

    def __init__(
        self,
        welcome: agent_pb2.Welcome,
        on_progress: Callable[[agent_pb2.WorkerHeartbeat], None],
        on_agent_ended: Callable[[int], None],
        faults: FaultLog,
        on_stacks: Callable[[agent_pb2.WorkerStacksTaken], None] = lambda _: None,
        on_usage: Callable[[str, agent_pb2.Heartbeat], None] = lambda _host, _heartbeat: None,
        on_memory_kill: Callable[[agent_pb2.MemoryKill], None] = lambda _: None,
        on_output_unwritten: Callable[[str, agent_pb2.OutputUnwritten], None] = lambda _host, _file: None,
        on_modules_imported: Callable[[notification_pb2.ModulesImported], None] = lambda _: None,
        on_environment_copy: Callable[[str, agent_pb2.EnvironmentCopy], None] = lambda _host, _copy: None,
    ) -> None:
        self._on_usage = on_usage
        self._on_memory_kill = on_memory_kill
        self._on_output_unwritten = on_output_unwritten
        self._on_modules_imported = on_modules_imported
        self._on_environment_copy = on_environment_copy
        self._welcome = welcome
        self._on_progress = on_progress
        self._on_agent_ended = on_agent_ended
        self._faults = faults
        self._on_stacks = on_stacks
        self._loaded: dict[tuple[str, bytes], None] = {}  # names and digests
        self._not_finite: set[str] = set()  # names of values

    def taken(self, peer: AgentPeer, message: agent_pb2.ConnectRequest) -> tuple[events.Event | None, bytes]:
        """What a message means to the core, and the progress in it: see InboundMessage. None, and none: nothing.

        Raises:
            ValueError: it is of a kind that does not belong here.
        """
        kind = message.WhichOneof("kind")
        if kind in _OF_A_WORKER and not self._is_its_own(peer.identity, getattr(message, kind).worker_id):
            return None, b""
        if kind == "worker_report":
            return self._take_report(message.worker_report)
        return self._event_of(peer, message, kind), b""

    def _take_report(self, report: agent_pb2.WorkerReport) -> tuple[events.Event | None, bytes]:
        progress = b""
        if report.report.HasField("progress"):
            beat = agent_pb2.WorkerHeartbeat(worker_id=report.worker_id, progress=report.report.progress)
            progress = beat.SerializeToString()
            self._on_progress(beat)
        if report.report.HasField("modules_imported"):
            self._on_modules_imported(report.report.modules_imported)
        event = event_of_report(report.worker_id, report.report)
        match event:
            case events.SourcesLoaded():
                event = self._unknown(event)
            case events.ScriptWarned():
                event = self._first(event)
        return event, b"" if event is None else progress

    def _event_of(self, peer: AgentPeer, message: agent_pb2.ConnectRequest, kind: str | None) -> events.Event | None:
        match kind:
            case "heartbeat":
                self._take_heartbeat(peer, message.heartbeat)
                return None
            case "memory_kill":
                self._on_memory_kill(message.memory_kill)
                return None
            case "output_unwritten":
                self._on_output_unwritten(peer.host, message.output_unwritten)
                return None
            case "environment_copy":
                self._on_environment_copy(peer.host, message.environment_copy)
                return None
            case "worker_ending":
                ending = message.worker_ending
                return events.WorkerEnding(ending.worker_id, epoch_seconds(ending.detect_time))
            case "worker_exited":
                return exit_of(message.worker_exited)
            case "worker_quiet":
                return events.WorkerQuiet(message.worker_quiet.worker_id)
            case "lease_expired":
                expired, lease = message.lease_expired, span_seconds(self._welcome.worker_lease)
                return events.LeaseExpired(expired.worker_id, lease, halt_of(expired.halt))
            case "worker_answered":
                return events.WorkerAnswered(message.worker_answered.worker_id)
            case "exit_overdue":
                overdue, bound = message.exit_overdue, span_seconds(self._welcome.exit_timeout)
                return events.ExitOverdue(overdue.worker_id, bound, halt_of(overdue.halt))
            case "worker_stacks_taken":
                self._on_stacks(message.worker_stacks_taken)
                return None
            case "drain_requested":
                drain = message.drain_requested
                within = max(0.0, span_seconds(drain.within))
                return events.DrainRequested(peer.host, None, drain.reason, within=within)
            case "host_checkpoints":
                return checkpoints_held(peer.host, peer.agent_id, message.host_checkpoints)
            case "agent_ending":
                self._on_agent_ended(peer.agent_id)
                return None
            case None:
                text = f"the agent of host {peer.host} sends a message that only later releases know"
                self._faults.leave_out(peer.identity, text)
                return None
            case _:
                raise ValueError(f"a message of kind {kind} does not belong on an open control stream")

    def _take_heartbeat(self, peer: AgentPeer, heartbeat: agent_pb2.Heartbeat) -> None:
        used = heartbeat.HasField("usage")
        for beat in heartbeat.workers:
            if not self._is_its_own(peer.identity, beat.worker_id):
                beat.ClearField("usage")
                continue
            used |= beat.HasField("usage")
            if beat.HasField("progress") or beat.stopped:
                self._on_progress(beat)
        if used:
            self._on_usage(peer.host, heartbeat)

    def _unknown(self, loaded: events.SourcesLoaded) -> events.SourcesLoaded | None:
        """A worker's files without those that others have reported: thousands load the same; None: all are known."""
        # By content alone: each host may have its own copy, made at another time.
        files = tuple(file for file in loaded.files if (file.name, file.digest) not in self._loaded)
        self._loaded |= {(file.name, file.digest): None for file in files}
        while len(self._loaded) > MAX_LOADED:
            del self._loaded[next(iter(self._loaded))]
        return replace(loaded, files=files) if files else None

    def _first(self, warned: events.ScriptWarned) -> events.ScriptWarned | None:
        """A warning that is the first of its kind: when a loss becomes NaN, all workers report it."""
        if not isinstance(warned.warning, NotFinite):
            return warned  # ranks 0 and 1 alone report others
        name = warned.warning.name
        if name in self._not_finite or len(self._not_finite) >= MAX_REPORTED_NAMES:
            return None
        self._not_finite.add(name)
        return warned

    def own_lines(
        self, identity: AgentIdentity, batch: agent_pb2.ForwardOutputRequest
    ) -> agent_pb2.ForwardOutputRequest:
        """The batch's lines whose worker, slot and rank are the agent's own; the others are dropped."""
        own = [line for line in batch.lines if identity.may_have_written(line)]
        if len(own) == len(batch.lines):
            return batch
        self._faults.leave_out(identity, f"the agent of host {identity.host} sends lines in another worker's name")
        return agent_pb2.ForwardOutputRequest(lines=own, dropped=batch.dropped)

    def _is_its_own(self, identity: AgentIdentity, worker_id: int) -> bool:
        """Whether a worker is one that the agent was ordered to start. Messages about others are dropped."""
        if worker_id in identity.workers:
            return True
        text = f"the agent of host {identity.host} reports on worker {worker_id}, which it does not own"
        self._faults.leave_out(identity, text)
        return False
