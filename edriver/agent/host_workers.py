"""All workers of this host: what the driver orders for them, how they are watched, and the report of their exits."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from edriver.agent.checkpoint_server import CheckpointServerSupervisor
from edriver.agent.driverless import Driverless
from edriver.agent.environment_copy import EnvironmentCopy
from edriver.agent.progress_reports import RoundReports
from edriver.agent.resources.sample import WorkerPlace
from edriver.agent.settings import AgentSettings
from edriver.agent.store_proxy import StoreProxy
from edriver.agent.worker import WorkerSupervisor
from edriver.agent.worker_settings import WorkerSettings
from edriver.agent.workers import error_file
from edriver.agent.workers.capture import OutputFile
from edriver.agent.workers.log_files import ERROR_FILE
from edriver.agent.workers.pipes import Pipes
from edriver.agent.workers.processes import Processes, SpawnError
from edriver.agent.workers.standbys import MIN_FREE_MEMORY, STANDBY_DELAY, Standbys
from edriver.agent.workers.worker_files import WorkerFiles
from edriver.common.lease import Lease
from edriver.common.store_proxy import PROXY_SOCKET
from edriver.system import stack_dump
from edriver.system.guard import Guard
from edriver.system.life_lock import LifeLock
from edriver.text.wire_text import wire_text
from edriver.v1 import agent_pb2, cause_pb2, stacks_pb2
from edriver.wire.assignments import assignment_notices
from edriver.wire.conversion import span_seconds, timestamp
from edriver.wire.tls_files import member_context

logger = logging.getLogger("edriver.agent")

LAST_REPORT_TIMEOUT = 0.5
"""Most seconds for which the exit of a worker that ended on its own is held back: until its stream has ended, too, a
few milliseconds later, for the report that says why may still be in it. A worker that a signal ended had no last words,
and the others wait for the news."""

NOT_STARTED_CODE = 126
"""The exit code of a worker that could not be started, as a shell would give it."""

KILLED_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a worker that SIGKILL ended, and of a shell around one."""

CRASH_CODES = frozenset(code for number in stack_dump.CRASH_SIGNALS for code in (-number, 128 + number))
"""Exit codes of a worker that has crashed, and of a shell around one."""

DETAIL_LIMIT = 1000
"""Most characters of why a worker could not be started."""

LAST_ANSWERS = 0.3
"""Most seconds for which the end of a run is held back for workers to say how far they are."""

REAP_BOUND = 5.0
"""Seconds that the kernel may take to end what was killed."""


class HostWorkers:
    """The workers of this host, by their ids, from the start of each until its exit has been reported.

    Args:
        settings: the agent's.
        worker_settings: what workers are started with.
        guard: ends their processes if the agent cannot.
        send: sends the driver a message.
        forward: sends the driver a line of output.
        driver_is_there: whether messages reach the driver now.

    Attributes:
        free_memory: bytes of the host's memory that are free; None: not known.
        standby_killed: called when a standby was killed, by the kernel as a rule, for want of memory.
    """

    def __init__(
        self,
        settings: AgentSettings,
        worker_settings: WorkerSettings,
        guard: Guard,
        send: Callable[[agent_pb2.ConnectRequest], None],
        forward: Callable[[agent_pb2.OutputLine], None],
        driver_is_there: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._worker_settings = worker_settings
        self._send = send
        self._forward = forward
        self._loop = asyncio.get_running_loop()
        self._processes = Processes(self._exited, guard)
        self._pipes = Pipes()
        self._standbys = Standbys(self._processes)
        self._standby_timer: asyncio.TimerHandle | None = None
        self._standby_count: int | None = None  # that the driver allows; None: it has not said
        self._slots_in_round: tuple[int, ...] = ()
        self.free_memory: int | None = None
        self.standby_killed: Callable[[], None] = lambda: None
        self._workers: dict[int, WorkerSupervisor] = {}
        self._checkpoint_server = CheckpointServerSupervisor(
            self._processes,
            worker_settings.checkpoint_server,
            worker_settings.environment,
            lambda held: send(agent_pb2.ConnectRequest(host_checkpoints=held)),
            driver_is_there,
        )
        self._proxy: StoreProxy | None = None
        self._environment_copy = EnvironmentCopy(guard, self._say_how_far_the_copy_is)
        self._copying: asyncio.Task[None] | None = None
        self._waiting: dict[int, agent_pb2.StartWorker] | None = None  # for the copy; None: nothing waits for one
        self._driverless = Driverless(self._workers, settings.host, worker_settings, driver_is_there)
        self._stopping = self._parted = False
        self._exit_reports: set[asyncio.Task[None]] = set()
        self._round_reports = RoundReports()
        self._progress_period = 0.0
        self._questions: set[asyncio.Task[None]] = set()
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def open(self) -> None:
        """From now on reap all processes that exit."""
        self._processes.open()

    def take(self, message: agent_pb2.ConnectResponse) -> None:
        """Carry out an order for workers of this host. An order for a worker that has ended has no effect."""
        match message.WhichOneof("kind"):
            case "start_worker":
                if not self._stopping:  # else the driver learns of this agent's end instead
                    self._start(message.start_worker)
            case "stop_worker":
                if worker := self._workers.get(message.stop_worker.worker_id):
                    worker.stop(span_seconds(message.stop_worker.grace))
                elif self._waiting and self._waiting.pop(message.stop_worker.worker_id, None):
                    self._report_exit(
                        message.stop_worker.worker_id, -signal.SIGTERM, "", self._worker_settings.clock(), None
                    )
            case "deliver_notice":
                for worker_id in message.deliver_notice.worker_ids:
                    if worker := self._workers.get(worker_id):
                        worker.link.deliver(message.deliver_notice.notice)
            case "take_worker_stacks":
                self._take_stacks(message.take_worker_stacks)
            case "assign_round":
                self._assign(message.assign_round)
            case "keep_checkpoints":
                self._checkpoint_server.keep(message.keep_checkpoints)
            case kind:
                logger.warning("ignored a message from the driver that this agent does not know: %s", kind)

    def stop_all(self, grace: float) -> None:
        """Stop all of them, and start none any more; the grace is in seconds."""
        self._start_none()
        for worker in self._workers.values():
            worker.stop(grace)

    def part_with_run(self, bound: float) -> None:
        """The run no longer has a driver: have all of them end gracefully, and start none any more.

        Args:
            bound: seconds after which they are killed.
        """
        self._start_none()
        self._parted = True
        self._driverless.part_with_run(bound)

    def _start_none(self) -> None:
        self._stopping = True
        self._environment_copy.stop()
        self._end_standbys()

    def _start(self, order: agent_pb2.StartWorker) -> None:
        """Start a worker, once this host has its copy of the environment. If that fails, its exit is reported."""
        if self._waiting is not None:
            self._waiting[order.worker_id] = order
            return
        files = WorkerFiles(self._settings.folder, order.worker_id)
        environment = self._worker_settings.environment_of(order)
        if order.HasField("modules_imported"):
            self._worker_settings.keep_imports(order.modules_imported)
        try:
            life = LifeLock.create(files.life)
            process = self._taken_standby(order.slot, environment) or self._processes.start(
                self._worker_settings.command, environment
            )
        except (SpawnError, OSError) as error:
            code = error.code if isinstance(error, SpawnError) else NOT_STARTED_CODE
            cause = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_NOT_STARTED, detail=wire_text(str(error), DETAIL_LIMIT))
            self._report_exit(order.worker_id, code, "", self._worker_settings.clock(), cause)
            files.life.unlink(missing_ok=True)
            return
        self._all_gone.clear()
        worker = self._workers[order.worker_id] = WorkerSupervisor(
            order,
            self._settings,
            self._worker_settings,
            process,
            life,
            self._pipes,
            self._processes.signal_group,
            self._report,
            self._forward,
        )
        worker.gpu = environment.get("CUDA_VISIBLE_DEVICES", "")

    def _assign(self, order: agent_pb2.AssignRound) -> None:
        """Give the workers their places in a round."""
        slots = []
        for member, notice in assignment_notices(order):
            if worker := self._workers.get(member.worker_id):
                slots.append(worker.slot)
                worker.assign(order.round, member)
                worker.link.deliver(notice)
        self._slots_in_round = tuple(slots)
        self._plan_standbys()

    def take_heartbeat(self, heartbeat: agent_pb2.Heartbeat) -> None:
        """Have as many standbys as the driver says: those that are too many end now, others come behind training."""
        if heartbeat.HasField("modules_imported"):
            self._worker_settings.keep_imports(heartbeat.modules_imported)
        if not heartbeat.HasField("standbys") or heartbeat.standbys == self._standby_count or self._stopping:
            return
        self._standby_count = heartbeat.standbys
        if self._standby_count:
            self._plan_standbys()
        else:
            self._end_standbys()

    def _plan_standbys(self) -> None:
        if self._standby_timer:
            self._standby_timer.cancel()
        self._standby_timer = self._loop.call_later(STANDBY_DELAY, self._keep_standbys)

    def _keep_standbys(self) -> None:
        settings, count = self._worker_settings, self._standby_count
        if count is None or self._stopping or self._waiting is not None:
            return
        restart = settings.restart_mode is not None
        command = settings.command if restart else settings.standby_command
        slots: Sequence[int] = self._slots_in_round[:count] if restart else range(count)
        if not command or (self.free_memory is not None and self.free_memory < MIN_FREE_MEMORY):
            slots = ()

        def environment_of(slot: int) -> dict[str, str]:
            return settings.environment_of(agent_pb2.StartWorker(slot=slot))

        self._standbys.keep(slots, command, environment_of)

    def _end_standbys(self) -> None:
        if self._standby_timer:
            self._standby_timer.cancel()
        self._standbys.keep((), (), lambda _slot: {})

    def _taken_standby(self, slot: int, environment: Mapping[str, str]) -> tuple[int, int, int] | None:
        """The process of a standby that is to be the slot's worker; None: there is none for it."""
        if self._worker_settings.restart_mode is not None:
            return self._standbys.take(slot, environment)
        return self._standbys.take_ready(environment)

    @property
    def standbys(self) -> int:
        """How many standbys are ready."""
        return self._standbys.ready

    def _take_stacks(self, question: agent_pb2.TakeWorkerStacks) -> None:
        """Find out where the threads of a worker stand, and tell the driver."""
        task = self._loop.create_task(self._tell_stacks(question), name=f"stacks of {question.worker_id}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _tell_stacks(self, question: agent_pb2.TakeWorkerStacks) -> None:
        worker = self._workers.get(question.worker_id)
        gone = stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_GONE)
        taken = agent_pb2.WorkerStacksTaken(
            worker_id=question.worker_id,
            number=question.number,
            stacks=gone if worker is None else await worker.stacks.take(),
        )
        self._send(agent_pb2.ConnectRequest(worker_stacks_taken=taken))

    def listens(self, worker_id: int, pid: int) -> None:
        """A worker's service listens, in this process."""
        if worker := self._workers.get(worker_id):
            worker.listens(pid)

    def heartbeat(self, progress_period: float = 0.0) -> agent_pb2.Heartbeat:
        """A sign of life, with the progress that workers have reported since the last one.

        Args:
            progress_period: seconds between two reports of one worker; see ProgressReports.
        """
        beat = agent_pb2.Heartbeat()
        now, self._progress_period = self._loop.time(), progress_period
        for worker in self._workers.values():
            stopped, progress = worker.halt is not None, worker.link.progress
            if stopped:
                worker.progress_reports.forget()  # that it goes on is to be known at once
            elif progress is None or not worker.progress_reports.is_due(progress, progress_period, now):
                continue
            beat.workers.add(worker_id=worker.worker_id, pid=worker.trainer, progress=progress, stopped=stopped)
            worker.link.progress = None
        return beat

    @property
    def keep_checkpoints_alone(self) -> bool:
        """Whether there are no workers, and yet what they have saved in memory."""
        return not self._workers and self._checkpoint_server.holds_any

    def places(self) -> list[WorkerPlace]:
        """Where what the workers use is to be looked for."""
        return [WorkerPlace(worker.worker_id, worker.pid, worker.gpu) for worker in self._workers.values()]

    def own_processes(self) -> dict[int, tuple[int, int]]:
        """Of each worker its command's process and the one that trains; 0: not known yet."""
        return {worker.worker_id: (worker.pid, worker.trainer) for worker in self._workers.values()}

    async def ask(self) -> None:
        """Ask all workers how far they are, so that the next heartbeat says it; for LAST_ANSWERS at most."""
        asked = {self._loop.create_task(worker.link.ask()) for worker in self._workers.values()}
        if asked:
            _, late = await asyncio.wait(asked, timeout=LAST_ANSWERS)
            for task in late:
                task.cancel()

    async def ping(self) -> None:
        """Look how the workers do, again and again, until cancelled; only after the first Welcome."""
        while True:
            period = Lease(self._worker_settings.worker_lease, self._loop.time).period
            await asyncio.sleep(min((worker.link.next_tick for worker in self._workers.values()), default=period))
            for worker in list(self._workers.values()):
                worker.check()
            self._driverless.check()

    def _report(self, message: agent_pb2.ConnectRequest) -> None:
        """Send what is said of a worker, but for what this agent alone is asked for."""
        if message.worker_report.report.HasField("checkpoint_server_needed"):
            self._checkpoint_server.need()
            return
        if self._progress_period and (worker := self._workers.get(message.worker_report.worker_id)):
            self._round_reports.shorten(message.worker_report.report, worker.progress_reports, self._loop.time())
        self._send(message)
        self._driverless.note(message)

    def welcomed(self) -> None:
        """The driver has let the agent in, for the first time or again."""
        for worker in self._workers.values():
            worker.progress_reports.forget()
        self._checkpoint_server.report_unsent()
        self._open_proxy()
        if self._worker_settings.copy_environment and self._copying is None:
            self._waiting = {}
            self._copying = self._loop.create_task(self._copy_environment(), name="environment copy")

    def _open_proxy(self) -> None:
        """Have a proxy for the stores of other hosts, where workers meet at these."""
        credentials = self._worker_settings.store_proxy_credentials
        if self._proxy is not None or credentials is None:
            return
        try:
            context = member_context(ssl.PROTOCOL_TLS_CLIENT, credentials)
            self._proxy = StoreProxy(self._settings.folder / PROXY_SOCKET, context)
        except OSError as error:
            logger.warning("the workers here connect to other hosts' stores one by one: %s", error)

    async def _copy_environment(self) -> None:
        """Have the workers start in a copy of their Python environment, once that is there, or without one."""
        settings = self._worker_settings
        try:
            relocation = await self._environment_copy.make(
                settings.copy_environment, settings.command, settings.environment
            )
            if relocation is not None:
                settings.use_copy(relocation)
        finally:
            waiting, self._waiting = self._waiting or {}, None
            if not self._stopping:
                for order in waiting.values():
                    self._start(order)
                self._plan_standbys()

    def _say_how_far_the_copy_is(self, copy: agent_pb2.EnvironmentCopy) -> None:
        self._send(agent_pb2.ConnectRequest(environment_copy=copy))

    async def close(self, kill_by: float) -> bool:
        """Wait for the exits of workers that have all been stopped, then kill all processes that are left.

        Args:
            kill_by: when the workers' grace is over, on the event loop's clock.

        Returns:
            whether nothing was left.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(kill_by + REAP_BOUND):
                await self._all_gone.wait()
        if self._parted:
            await self._checkpoint_server.write_last(kill_by)
        await self._checkpoint_server.close()
        if self._proxy is not None:
            await self._proxy.close()
        if self._copying is not None:
            await asyncio.wait({self._copying}, timeout=REAP_BOUND)  # it ends with the file that it copies
            await self._environment_copy.remove()
        return await self._processes.close(REAP_BOUND)

    def _exited(self, pid: int, code: int) -> None:
        if self._standbys.exited(pid, code):
            if code in KILLED_CODES:
                self.standby_killed()
            return
        if self._checkpoint_server.exited(pid):
            return
        worker = next((worker for worker in self._workers.values() if worker.pid == pid), None)
        if worker is None:
            return  # a standby that was not needed any more
        task = self._loop.create_task(self._part_from(worker, code, worker.reaped(), self._worker_settings.clock()))
        self._exit_reports.add(task)
        task.add_done_callback(self._exit_reports.discard)

    async def _part_from(self, worker: WorkerSupervisor, code: int, tail: str, reaped: float) -> None:
        cause = worker.memory.verdict() if code in KILLED_CODES and not worker.stopped else None
        await worker.link.ended(LAST_REPORT_TIMEOUT if code >= 0 else 0)
        await self._checkpoint_server.catch_up()
        files = WorkerFiles(self._settings.folder, worker.worker_id)
        recorded = None if code == 0 else _recorded_error(files.error, worker)
        stacks = _text_of(files.stacks) if code in CRASH_CODES else ""
        code = 0 if worker.exit_overdue else code
        self._report_exit(worker.worker_id, code, tail, reaped, cause, recorded, stacks, worker.step)
        await worker.close()
        for left in (files.life, files.store, files.error, files.stacks):
            left.unlink(missing_ok=True)
        del self._workers[worker.worker_id]
        if not self._workers:
            self._all_gone.set()

    def _report_exit(
        self,
        worker_id: int,
        code: int,
        tail: str,
        reaped: float,
        cause: cause_pb2.Cause | None,
        recorded: agent_pb2.RecordedError | None = None,
        crash_stacks: str = "",
        step: int = 0,
    ) -> None:
        exited = agent_pb2.WorkerExited(
            worker_id=worker_id,
            code=code,
            tail=wire_text(tail),
            reap_time=timestamp(reaped),
            cause=cause,
            recorded_error=recorded,
            crash_stacks=crash_stacks,
            step=step,
        )
        self._report(agent_pb2.ConnectRequest(worker_exited=exited))


def _text_of(path: Path) -> str:
    """What a worker has written there; empty if that cannot be read."""
    data, _ = error_file.read(path)
    return wire_text(data.decode(errors="replace"))


def _recorded_error(path: Path, worker: WorkerSupervisor) -> agent_pb2.RecordedError | None:
    """What a worker's script has written to its error file, of which a copy is kept beside its other files."""
    data, changed = error_file.read(path)
    if data and worker.log_folder:
        copy = OutputFile(worker.log_folder / ERROR_FILE, append=False, on_unwritten=worker.note_unwritten)
        copy.write(data)
        copy.close()
    return error_file.recorded_error(data, changed) if data else None
