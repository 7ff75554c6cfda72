"""One worker of this host: its process, its stream, what the kernel reports about it, and how it is stopped.

How it ends: its service reports last that the script has ended without an exception; exit hooks then have
--exit-timeout, counted from the last sign of life. A process that is still there after that has failed, with one
exception: where the training process has ended well and only the command around it continues (`sh -c 'python train.py;
upload'`), the group is stopped and the worker counts as having ended with 0. Within that time the command's own exit
code counts.

The life lock shows that a training process has ended while it trains, whatever its command does: the others continue at
once, and the command is terminated after a worker's grace, so that the slot is free again. The same goes for what a
script becomes by `os.execv`. A command whose Python died before its first `edriver.run` cannot be distinguished from
one that still prepares something.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edriver.agent.health.cpu_use import CPU_WINDOW, CpuUseWatch, family_seconds, processor_seconds
from edriver.agent.health.memory_watch import MemoryWatch
from edriver.agent.health.process_state import halt_of_process
from edriver.agent.health.standing_still import StandstillWatch
from edriver.agent.health.unresponsive import UnresponsiveWatch
from edriver.agent.progress_reports import ProgressReports
from edriver.agent.settings import AgentSettings
from edriver.agent.worker_settings import WorkerSettings
from edriver.agent.workers import priority, py_spy
from edriver.agent.workers.capture import Capture
from edriver.agent.workers.pipes import Pipes
from edriver.agent.workers.stack_taker import StackTaker
from edriver.agent.workers.worker_files import WorkerFiles
from edriver.agent.workers.worker_link import WorkerLink
from edriver.common.lease import Lease
from edriver.model.cause import Halt
from edriver.model.stall_limits import Phase
from edriver.system import stack_dump
from edriver.system.life_lock import LifeLock
from edriver.v1 import agent_pb2, cause_pb2, notification_pb2, rounds_pb2
from edriver.wire.causes import halt_message
from edriver.wire.conversion import duration, timestamp

logger = logging.getLogger("edriver.agent")

TERMINATION_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for the workers, when that was not enough."""


BOUNDARY_TIMEOUT = 10.0
"""Seconds that a worker has to reach a boundary once its run no longer has a driver. Where others can no longer be
reached, it hangs in a collective: then its round is aborted, so that it goes back to its last boundary."""


class WorkerSupervisor:
    """A worker that has been started and whose exit has not been reported yet.

    Args:
        order: the driver's order to start it.
        settings: the agent's settings.
        worker_settings: the settings of workers, such as their lease and log files.
        process: its process ID, and the read ends of its pipes (Processes.start).
        life: the lock that its training process holds.
        pipes: the reader of its output.
        signal_group: sends a signal to its process group, while that exists.
        send: sends a message to the driver.
        forward: sends a line of output to the driver.

    Attributes:
        worker_id: its ID.
        slot: its slot.
        pid: the process ID of its command.
        link: the stream to its service.
        capture: its output.
        memory: detects whether the kernel ended it for lack of memory.
        unresponsive: detects that it has been silent for too long.
        stacks: takes the stacks of its threads.
        log_folder: the folder of its files in restart mode, or None.
        trainer: its training process: the command itself, unless that is a shell or the like; 0: not known yet.
        trainer_ended: whether that process has ended, which may be long before it can be reaped.
        exit_overdue: whether its script ended successfully but its command then took too long.
        stopped: whether this agent has stopped it.
        in_round: whether it is in its latest round: it has not reported since then that it waits for another.
        gpu: its CUDA_VISIBLE_DEVICES; empty: no GPU is assigned.
        progress_reports: which of its progress goes to the driver.
    """

    def __init__(
        self,
        order: agent_pb2.StartWorker,
        settings: AgentSettings,
        worker_settings: WorkerSettings,
        process: tuple[int, int, int],
        life: LifeLock,
        pipes: Pipes,
        signal_group: Callable[[int, signal.Signals], None],
        send: Callable[[agent_pb2.ConnectRequest], None],
        forward: Callable[[agent_pb2.OutputLine], None],
    ) -> None:
        self.worker_id = order.worker_id
        self.slot = order.slot
        self.pid, stdout, stderr = process
        self._background = order.background and priority.lower(self.pid, priority.BOOT_NICENESS)
        self._worker_settings = worker_settings
        self._life: LifeLock | None = life
        self._signal_group = signal_group
        self._send = send
        self._loop = asyncio.get_running_loop()
        lease = Lease(worker_settings.worker_lease, self._loop.time)
        bound = worker_settings.exit_timeout
        self.link = WorkerLink(
            settings.run_id,
            self.worker_id,
            WorkerFiles(settings.folder, self.worker_id).socket,
            lease,
            self._report,
            self._expired,
            self._exit_overdue,
            bound,
            self._fell_quiet,
            self._note_life,
            self._lives,
        )
        destinations = worker_settings.destinations(order)
        output = stdout, stderr, pipes, forward, self._printed, self.note_unwritten
        self.capture = Capture(order.worker_id, order.slot, *output, destinations)
        self.memory = MemoryWatch(self.pid)
        self.unresponsive = UnresponsiveWatch(self._ask_where_it_stands)
        self.stacks = StackTaker(
            lambda: self.trainer > 0 and not self.link.ending,
            lambda: self.halt is not None,
            self.link.deliver,
            lambda: stack_dump.ask(self.trainer, self.pid, stack_dump.FILE_SIGNAL),
            WorkerFiles(settings.folder, self.worker_id).stacks,
            lambda: py_spy.dump(self.trainer or self.pid),
        )
        self.log_folder: Path | None = None
        self.trainer = 0
        self.exit_overdue = False
        self.stopped = False
        self.gpu = ""
        self.progress_reports = ProgressReports()
        self.in_round = False
        self.trainer_ended = False
        self._effort: CpuUseWatch | None = None  # of the trainer, once its script has ended
        self._standstill: StandstillWatch | None = None  # of a script in restart mode
        self._failed = False  # by an exception of the script, so that its process is about to end
        self._terminating: asyncio.TimerHandle | None = None
        self._killing: asyncio.TimerHandle | None = None
        self._freeing: asyncio.TimerHandle | None = None

    @property
    def halt(self) -> Halt | None:
        """What keeps its process from running; None: nothing does."""
        return halt_of_process(self.trainer) if self.trainer else None

    @property
    def step(self) -> int:
        """The last step that its script has made, in restart mode; 0: not known."""
        return self._life.step if self._life else 0

    @property
    def round_id(self) -> rounds_pb2.RoundId:
        """Its latest round; all zero: it has had none."""
        return self.unresponsive.round_id

    def listens(self, pid: int) -> None:
        """Its service listens, in this process."""
        self.link.attach()
        if not self.trainer:
            self.trainer = pid
            name = f"life of {self.worker_id}"
            threading.Thread(target=self._watch, args=(self._life,), name=name, daemon=True).start()

    def assign(self, shared: rounds_pb2.RoundAssignment, member: rounds_pb2.Seat) -> None:
        """It has a place in a round: its output has that rank from now on, and goes where that place's does."""
        self.capture.begin_round(member.rank)
        self.unresponsive.round_id.CopyFrom(shared.round_id)
        self.in_round = True
        self.progress_reports.leads = member.rank == 0
        if logs := self._worker_settings.logs:
            self.log_folder = logs.of_worker(shared.failures, member.local_rank)
            self.capture.lead_to(logs.destinations(shared.failures, member.local_rank))
        limit = self._worker_settings.stall_limits.get(Phase.STEP, 0.0)
        if limit and self._worker_settings.restart_mode is not None:
            window = min(CPU_WINDOW, limit / 4)
            self._standstill = StandstillWatch(lambda: family_seconds(self.trainer), self._loop.time, window)

    def check(self) -> None:
        """Look how it does; to be called when `link.next_tick` has passed."""
        self._check_cpu_use()
        self._look_for_standstill()
        self.link.tick()
        self.memory.sample()

    def stop(self, grace: float) -> None:
        """End it by SIGTERM and, after the grace in seconds, by SIGKILL; without a grace by SIGKILL at once.

        One that has failed ends by itself, and prints its traceback: it gets SIGTERM after half of the grace only.
        """
        self.stopped = True
        if grace <= 0:
            self._signal_group(self.pid, signal.SIGKILL)
            return
        if self._failed:
            self._terminating = self._signal_in(grace / 2, signal.SIGTERM, self._terminating)
        else:
            self._signal_group(self.pid, signal.SIGTERM)
        self._killing = self._signal_in(grace, signal.SIGKILL, self._killing)

    def part_with_run(self, checkpoint: bool, bound: float) -> None:
        """Have it end at its next boundary, or from where it hangs; after so many seconds by SIGKILL."""
        self.stopped = True
        self.link.deliver(notification_pb2.Notice(driver_gone=notification_pb2.DriverGone(checkpoint=checkpoint)))
        cause = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_BOUNDARY_MISSED, text="the run no longer has a driver")
        abort = notification_pb2.Abort(round_id=self.round_id, cause=cause)
        self._freeing = self._loop.call_later(BOUNDARY_TIMEOUT, self.link.deliver, notification_pb2.Notice(abort=abort))
        self._killing = self._signal_in(bound, signal.SIGKILL, self._killing)

    def _signal_in(
        self, seconds: float, number: signal.Signals, planned: asyncio.TimerHandle | None
    ) -> asyncio.TimerHandle:
        """Send it a signal in so many seconds, or when that is planned if that is earlier."""
        when = self._loop.time() + seconds
        if planned is not None:
            if planned.when() <= when:
                return planned
            planned.cancel()
        return self._loop.call_at(when, self._signal_group, self.pid, number)

    def reaped(self) -> str:
        """Its process has been reaped; returns the last lines of its output."""
        self.trainer_ended = True
        for timer in (self._terminating, self._killing, self._freeing):
            if timer:
                timer.cancel()
        return self.capture.finish()

    async def close(self) -> None:
        """Its exit has been reported: end its stream, and hold nothing of it open."""
        await self.link.close()
        self._life = None  # its file stays mapped else until the cycles of callbacks around this object are collected

    def _watch(self, life: LifeLock) -> None:
        """Runs in a thread: reports the end of a worker as soon as it has ended, long before it can be reaped."""
        if self._background:
            priority.restore(self.pid)
        if life.wait_for_end():
            self.trainer_ended = True
            now = timestamp(self._worker_settings.clock())
            ending = agent_pb2.WorkerEnding(worker_id=self.worker_id, detect_time=now)
            with suppress(RuntimeError):  # the loop is closed: the agent is ending
                self._loop.call_soon_threadsafe(self._send, agent_pb2.ConnectRequest(worker_ending=ending))
            priority.lower(self.pid, priority.ENDED_NICENESS)  # its memory is freed while others are to continue

    def _check_cpu_use(self) -> None:
        """Once its script has ended, a worker that computes lives."""
        if not self.link.ending:
            return
        if self._effort is None:
            window = min(CPU_WINDOW, self._worker_settings.exit_timeout / 4)
            self._effort = CpuUseWatch(lambda: processor_seconds(self.trainer), self._loop.time, window)
        if self._effort.was_busy():
            self.link.show_life()

    def _look_for_standstill(self) -> None:
        """Report when a script in restart mode stands still, and (0 seconds) when it continues."""
        if self._standstill is None or self.link.ending:
            return
        if (seconds := self._standstill.check()) is not None:
            idle = notification_pb2.WorkerIdle(round_id=self.unresponsive.round_id)
            if seconds:
                idle.duration.CopyFrom(duration(seconds))
            self._report(notification_pb2.Report(worker_idle=idle))

    def _printed(self) -> None:
        self.link.show_life()
        if self._standstill is not None:
            self._standstill.hear()

    def note_unwritten(self, file: Path, reason: str) -> None:
        """A file of its output, or of its error, cannot be written: the driver reports that."""
        lost = agent_pb2.OutputUnwritten(worker_id=self.worker_id, file=str(file), reason=reason)
        self._send(agent_pb2.ConnectRequest(output_unwritten=lost))

    def _report(self, message: notification_pb2.Report) -> None:
        if message.HasField("stacks_taken"):
            self.stacks.answered(message.stacks_taken)
            return
        if message.HasField("worker_waiting"):
            self.in_round = False
        self._failed = self._failed or (message.HasField("worker_failed") and not message.worker_failed.rejoins)
        report = agent_pb2.WorkerReport(worker_id=self.worker_id, report=message)
        self._send(agent_pb2.ConnectRequest(worker_report=report))

    def _fell_quiet(self) -> None:
        self._send(agent_pb2.ConnectRequest(worker_quiet=agent_pb2.WorkerQuiet(worker_id=self.worker_id)))

    def _expired(self) -> None:
        expired = agent_pb2.LeaseExpired(worker_id=self.worker_id, halt=halt_message(self.halt))
        self._send(agent_pb2.ConnectRequest(lease_expired=expired))

    def _note_life(self) -> None:
        self._send(agent_pb2.ConnectRequest(worker_answered=agent_pb2.WorkerAnswered(worker_id=self.worker_id)))

    def _lives(self, seconds: float) -> bool:
        if halt_of_process(self.trainer) is not None:
            return False
        phase = self._life.phase if self._life else None
        if stall := self.unresponsive.check(seconds, phase, self._worker_settings.stall_limits):
            self._report(stall)
        return True

    def _ask_where_it_stands(self) -> None:
        stack_dump.ask(self.trainer, group=self.pid)

    def _exit_overdue(self) -> None:
        """Its script has ended, and its process has not. Where only a wrapper is left, the worker has done its part."""
        if not (self.trainer_ended and self.link.parted):
            overdue = agent_pb2.ExitOverdue(worker_id=self.worker_id, halt=halt_message(self.halt))
            self._send(agent_pb2.ConnectRequest(exit_overdue=overdue))
            return
        logger.warning(
            "worker %d: its command kept running for %g s after the script had succeeded, and is stopped "
            "(--exit-timeout)",
            self.worker_id,
            self._worker_settings.exit_timeout,
        )
        self.exit_overdue = True
        self.stop(TERMINATION_GRACE)
