"""The rounds of a worker process: what its two threads share.

One lock, `_changed`, stands around the Participant, which decides, and the RoundLoop, which asks it (participant.py).
The training thread drives the loop (training_thread.py); the notification thread enters in `_take` alone.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from edriver.common.run_clock import RunClock
from edriver.common.standby import IMPORTS_VARIABLE
from edriver.model.ids import Version
from edriver.model.stall_limits import Phase, collective_timeout, limits_of
from edriver.system import stack_dump
from edriver.system.life_lock import LifeLock
from edriver.v1 import cause_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import epoch_seconds, round_id_of
from edriver.worker.context import WorkerContext
from edriver.worker.errors import PeerLostError
from edriver.worker.rounds.group import Group
from edriver.worker.rounds.notification import NotificationManager, NotificationServer
from edriver.worker.rounds.participant import Participant, SealVerdict
from edriver.worker.rounds.progress_watch import ProgressWatch
from edriver.worker.rounds.round_times import RoundTimes
from edriver.worker.rounds.script_call import ScriptCall
from edriver.worker.rounds.severing import Severing
from edriver.worker.rounds.step_times import StepTimer
from edriver.worker.rounds.training_thread import TrainingThread
from edriver.worker.state.state import State
from edriver.worker.watch.imports import ImportRecord, StartEnvironment, imported_report
from edriver.worker.watch.script_location import nested_run
from edriver.worker.watch.script_reports import ScriptReports
from edriver.worker.watch.source_files import SourceFiles

R = TypeVar("R")

PROCESS_ENDED: Final = frozenset(
    {
        cause_pb2.CAUSE_KIND_ENDED,
        cause_pb2.CAUSE_KIND_EXITED,
        cause_pb2.CAUSE_KIND_KILLED,
        cause_pb2.CAUSE_KIND_OUT_OF_MEMORY,
        cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY,
        cause_pb2.CAUSE_KIND_LOST_WITH_HOST,
    }
)
"""Causes of an abort after which the process of the worker that they name does nothing any more."""


class WorkerRounds:
    """A worker's rounds, from its first `run` to its end.

    Args:
        context: of this process.
        environ: what the agent passed to the worker: EDRIVER_RUN_ID, EDRIVER_WORKER_ID, EDRIVER_SOCKET, EDRIVER_READY,
            EDRIVER_LIFE, EDRIVER_STALL_LIMITS, EDRIVER_CLOCK, EDRIVER_IMPORTS.
        group: the process group.
        looks_like_peer_loss: tells a broken collective from an exception of the script's own.
        orphaned: called on the notification thread when the agent is gone for good: ends the process.
    """

    def __init__(
        self,
        context: WorkerContext,
        environ: Mapping[str, str],
        group: Group,
        looks_like_peer_loss: Callable[[BaseException], bool],
        orphaned: Callable[[], None],
    ) -> None:
        self._context = context
        self.notifications = NotificationManager()
        self._participant = Participant()
        self._changed = threading.Condition(threading.Lock())
        clock = RunClock.of(environ)
        self._times = RoundTimes(clock)
        self._step_times = StepTimer(wall_clock=clock)
        self._server = NotificationServer(
            environ["EDRIVER_SOCKET"],
            environ["EDRIVER_RUN_ID"],
            int(environ["EDRIVER_WORKER_ID"]),
            self._take,
            orphaned,
        )
        stack_dump.enable(Path(environ["EDRIVER_SOCKET"]))
        limits = limits_of(environ.get("EDRIVER_STALL_LIMITS", "").split(), base={})
        self._watch = ProgressWatch(
            context, self._participant, self._step_times, limits, self._server.report, lambda: group.gloo_only
        )
        self._severing = Severing(self._participant, self._changed, context.micro_batch, group, self._server.report)
        self._training = TrainingThread(
            context,
            environ["EDRIVER_WORKER_ID"],
            self._participant,
            self._changed,
            self._server,
            group,
            collective_timeout(limits),
            self._times,
            self._watch,
            looks_like_peer_loss,
        )
        self._sources = SourceFiles()
        self._imports: ImportRecord | None = None
        if IMPORTS_VARIABLE in environ:
            started = context.part(StartEnvironment).variables
            self._imports = ImportRecord(Path(environ[IMPORTS_VARIABLE]), {}, self._report_imports, started)
        self._call: ScriptCall[Any] | None = None
        self._life = LifeLock(Path(environ["EDRIVER_LIFE"]))
        context.phase.show = self._show_phase
        context.need_checkpoint_server = self._server.need_checkpoint_server
        context.save_requests.report = self._server.checkpoint_written
        participant = self._participant
        self._reports = context.part(ScriptReports)
        self._reports.connect(self._server.report, lambda: (participant.round_id, participant.boundaries))
        if threading.current_thread() is threading.main_thread():  # another thread may end before the process does
            self._life.hold()
        self._server.start(environ["EDRIVER_READY"])
        atexit.register(self._server.stop)

    # ---- the training thread ----------------------------------------------------------------------------------

    def run(self, function: Callable[..., R], state: State, args: Any, kwargs: Any) -> R | None:
        """Call the function in one round after the other until all members are done: see `run.run`."""
        if self._watch.state is not None:
            raise nested_run(function)
        self._report_sources(self._sources.new())
        participant = self._participant
        call = ScriptCall(self._context, function, state, args, kwargs, self._synced, lambda: participant.boundaries)
        self._call = call
        self._training.enter(call)
        self._reports.entered()
        self.notifications.register_listener(state)
        self._watch.state = state
        state.bind(self)
        self._watch.looks.start()
        try:
            return self._training.run(call)
        finally:
            self._watch.looks.stop()
            self._call = None
            self._step_times.ended(self._watch.reported)
            state.bind(None)
            self._watch.state = None
            self.notifications.remove_listener(state)

    @property
    def abort_cause(self) -> str | None:
        """Why the round was aborted, in words; None: it goes on."""
        return self._participant.abort_cause

    @property
    def version(self) -> Version:
        """The version of the last boundary: see `Participant.live`."""
        return self._participant.live

    def boundary(self, committed: bool) -> None:
        """Count a boundary: see `state.Rounds`. Without news it is one comparison of a local integer."""
        self._step_times.passed(self._watch.reported)
        if self._participant.passed(committed):
            self._training.decide_boundary()

    def check(self) -> None:
        """Look for bad news without counting a boundary: see `state.Rounds`."""
        self._watch.checks += 1
        if self._participant.abort_cause is not None:
            raise PeerLostError(self._participant.abort_cause)

    def clipped(self, norm: float) -> None:
        """Note by which norm gradients are clipped: see `state.BoundaryListener`."""
        self._participant.clipped(norm)

    def seal_broken(self, error: Exception) -> float | None:
        """Wait for the next round's version: see `state.BoundaryListener`."""
        assert self._call is not None, "a seal of a state that is bound"
        if self._training.settle_seal(self._call, error) is SealVerdict.LEAVE:
            raise PeerLostError(str(error))
        assert self._participant.assignment is not None, "the next round goes on from the step"
        return self._participant.assignment.gradient_norm

    def _report_sources(self, files: Sequence[pb.SourceFile]) -> None:
        if files:
            self._server.report(pb.Report(sources_loaded=pb.SourcesLoaded(files=files)))

    def _report_imports(self, names: Sequence[str], environment: Mapping[str, str]) -> None:
        """Say what the script has imported, for hosts that have had no worker yet; the last rank does, for all."""
        place = self._participant.assignment
        if place is not None and place.rank == place.size - 1:
            self._server.report(imported_report(names, environment))

    def _synced(self) -> None:
        self._times.mark("synced")
        self._step_times.synced(self._participant.round_id)
        self._reports.synced(self._context.place.assignment)

    def _show_phase(self, phase: Phase | None) -> None:
        self._life.show_phase(phase)
        if phase is not None:
            self._step_times.entered(phase)

    # ---- the notification thread ------------------------------------------------------------------------------

    def _take(self, notice: pb.Notice) -> pb.Report | None:
        match notice.WhichOneof("kind"):
            case "ping":
                self._watch.look()
                self._sources.look(self._report_sources)
                if self._imports is not None and self._participant.assignment is not None:
                    self._imports.update()
            case "abort":
                self._times.mark("notified")
                cause = notice.abort.cause
                if cause.kind in PROCESS_ENDED and cause.HasField("rank"):
                    self._context.lost_members.add(round_id_of(notice.abort.round_id), cause.rank)
            case "stop_at":
                self._times.mark("notified")
            case "assignment":
                self._times.mark("assigned")
            case "save_checkpoint":
                save = notice.save_checkpoint
                self._context.save_requests.request(round_id_of(save.round_id), save.number)
        with self._changed:
            answer = self._participant.take(notice)
            self._changed.notify_all()
            aborted = notice.HasField("abort") and self._participant.abort_cause is not None
            round_id, place = self._participant.round_id, self._participant.assignment
        if answer is not None and answer.HasField("pong"):
            answer.pong.progress.CopyFrom(self._watch.progress())
        if aborted:
            if self._watch.state is not None:
                self._watch.state.peer_lost()
            cause = notice.abort.cause
            elsewhere = place is not None and cause.HasField("rank") and not place.shares_replica(cause.rank)
            self._severing.begin(round_id, replica_is_whole=elsewhere)
        elif answer is not None and answer.HasField("boundary_reached"):
            updated = notice.hosts_updated
            self.notifications.handle_hosts_updated(epoch_seconds(updated.timestamp), int(updated.result))
        return answer
