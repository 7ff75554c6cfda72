"""The agent: one per host. It starts and reaps the host's workers, and carries what passes between them and the driver.

This file knows what each message means; how streams, processes and output work is in control_stream.py, worker_link.py,
processes.py and capture.py. Everything here runs in one event loop, in the main thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edriver.agent.assignments import place_notices
from edriver.agent.control_stream import FIRST_LEASE, ControlStream, DriverLostError
from edriver.agent.forward import OutputForwarder
from edriver.agent.health.cpu_use import WINDOW, Effort, processor_seconds
from edriver.agent.health.memory_watch import MemoryWatch
from edriver.agent.health.process_state import stands_still
from edriver.agent.health.unresponsive import Muteness
from edriver.agent.workers import priority
from edriver.agent.workers.capture import Capture
from edriver.agent.workers.processes import Processes, SpawnError
from edriver.agent.workers.ready_socket import READY_SOCKET, ReadySocket
from edriver.agent.workers.worker_environment import cuda_devices, worker_environment
from edriver.agent.workers.worker_link import WorkerLink
from edriver.common.lease import Lease
from edriver.common.release import VERSION
from edriver.common.tls_files import keep_papers
from edriver.system import stack_dump
from edriver.system.guard import Guard
from edriver.system.life_lock import LifeLock
from edriver.system.own_addresses import is_loopback
from edriver.text.wire_text import wire_text
from edriver.v1 import agent_pb2, agent_pb2_grpc, notification_pb2

logger = logging.getLogger("edriver.agent")

PATIENCE = 600.0
"""Seconds that an agent which nobody has started waits for the driver to come, and to have a place for its host."""

DRAIN_BOUND = 20.0
"""Seconds that an agent which has got SIGTERM leaves to the driver, to have its workers leave in good order: Kubernetes
and Slurm kill 30 s after it."""

TERMINATION_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for the workers, when that was not enough."""

LAST_WORDS = 0.5
"""Most seconds for which the exit of a worker that ended by itself is held back: until its stream has ended, too, a few
milliseconds later, for the report that says why may still be in it. A worker that a signal ended had no last words, and
somebody waits for the news."""

CANNOT_START = 126
"""The exit code of a worker that could not be started, as a shell would give it."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a worker that SIGKILL ended, and of a shell around one."""

REASON_LIMIT = 1000
"""Most characters of why a worker ended."""

REAP_BOUND = 5.0
"""Seconds that the kernel may take to end what was killed."""

FLUSH_BOUND = 2.0
"""Seconds that the driver may take for the last messages and lines."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent is told when it is launched.

    Attributes:
        run_id: the run.
        host: the name under which discovery knows this host.
        agent_id: names this agent to the driver.
        address: where this host's workers are reached; empty: where the driver sees this agent.
        folder: private to this agent, for its sockets.
        interface: the network interface whose address that is; empty: any.
        slots: how many workers this host takes, if it dials in by itself, with agent_id 0.
        secret: by which the driver knows this agent; empty: the first Welcome brings it.
    """

    run_id: str
    host: str
    agent_id: int
    address: str
    folder: Path
    interface: str = ""
    slots: int = 0
    secret: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Worker:
    """A worker that has been started and whose exit has not been reported yet."""

    worker_id: int
    pid: int
    capture: Capture
    link: WorkerLink
    life: LifeLock
    memory: MemoryWatch
    background: bool
    muteness: Muteness
    trainer: int = 0  # the process that trains: the command's own, unless that is a shell or the like
    trainer_ended: bool = False
    effort: Effort | None = None  # of the trainer, once its script has ended
    outstayed: bool = False  # its script had ended well, and what its command still did took too long
    killing: asyncio.TimerHandle | None = None
    stopped: bool = False  # by this agent


class Agent:
    """One host's agent. Made and run in one event loop.

    Args:
        settings: see AgentSettings.
        stub: the driver's service.
        environment: the agent's own, which its workers inherit.
        guard: clears up after the agent.
        nothing_listens: looks whether the driver's address refuses connections.
    """

    def __init__(
        self,
        settings: AgentSettings,
        stub: agent_pb2_grpc.AgentServiceAsyncStub,
        environment: Mapping[str, str],
        guard: Guard,
        nothing_listens: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._hello = agent_pb2.Hello(
            run_id=settings.run_id,
            host=settings.host,
            agent_id=settings.agent_id,
            pid=os.getpid(),
            version=VERSION,
            slots=settings.slots,
            secret=settings.secret,
        )
        self._address = settings.address
        self._interface: str | None = None
        self._papers: Path | None = None
        first_lease = FIRST_LEASE if settings.agent_id else PATIENCE
        self._control = ControlStream(
            stub,
            self._hello,
            self._loop.time,
            self._take_welcome,
            self._take,
            self._heartbeat,
            first_lease,
            nothing_listens,
        )
        self._forwarder = OutputForwarder(stub, settings.agent_id, settings.secret)
        self._processes = Processes(self._worker_exited, guard)
        self._ready_path = settings.folder / READY_SOCKET
        self._welcome = agent_pb2.Welcome()
        self._welcomed = asyncio.Event()
        self._workers: dict[int, Worker] = {}
        self._exit_reports: set[asyncio.Task[None]] = set()
        self._draining: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._gone = asyncio.Event()
        self._kill_by = 0.0
        self._exit_code = 0

    async def run(self) -> int:
        """Serve the driver until it says Shutdown, SIGTERM comes, or the driver is lost.

        Returns:
            the agent's exit code: 0 after Shutdown, 143 after SIGTERM, 1 if the driver was lost or something of what
            was killed is still there.
        """
        self._processes.open()
        self._loop.add_signal_handler(signal.SIGTERM, self._terminated)
        self._loop.add_signal_handler(signal.SIGUSR1, self._leave, "its agent got SIGUSR1")
        # Ctrl-C is the driver's business. A handler, because workers would inherit that a signal is ignored.
        self._loop.add_signal_handler(signal.SIGINT, lambda: None)
        ready = ReadySocket(self._ready_path, self._worker_ready)
        control = asyncio.create_task(self._control.run())
        control.add_done_callback(self._control_ended)
        forwarding = asyncio.create_task(self._forwarder.run())
        pinging = asyncio.create_task(self._ping())
        try:
            await self._stopping.wait()
            await self._end_processes()
            await self._flush(control, forwarding)
        finally:
            for task in (control, forwarding, pinging):
                task.cancel()
            await asyncio.wait({control, forwarding, pinging})
            ready.close()
        return self._exit_code

    # What the driver says.

    def _take_welcome(self, welcome: agent_pb2.Welcome) -> None:
        self._welcome = welcome
        self._hello.agent_id = self._forwarder.agent_id = welcome.agent_id or self._hello.agent_id
        self._hello.secret = self._forwarder.secret = welcome.secret or self._hello.secret
        if welcome.HasField("papers") and self._papers is None:
            self._papers = keep_papers(welcome.papers, self._settings.folder)
        if not self._welcomed.is_set() and not is_loopback(self._address):
            from edriver.agent.addresses import interface_of, own_address  # a run on one machine does without psutil

            try:
                self._address = self._address or own_address(welcome.seen_from, self._settings.interface)
            except (OSError, ValueError) as error:
                logger.error("the workers here can be reached by no address: %s", error)
                self._exit_code = 1
                self._stop(grace=0)
                return
            self._interface = interface_of(self._address)
        self._welcomed.set()

    def _take(self, message: agent_pb2.FromDriver) -> None:
        match message.WhichOneof("kind"):
            case "start_worker":
                self._start_worker(message.start_worker)
            case "stop_worker":
                if worker := self._workers.get(message.stop_worker.worker_id):
                    self._stop_worker(worker, message.stop_worker.grace)
            case "deliver_notice":
                for worker_id in message.deliver_notice.worker_ids:
                    if worker := self._workers.get(worker_id):
                        worker.link.deliver(message.deliver_notice.notice)
            case "assign_round":
                for seat, notice in place_notices(message.assign_round):
                    if worker := self._workers.get(seat.worker_id):
                        worker.capture.rank = seat.rank
                        worker.muteness.round_id.CopyFrom(message.assign_round.round.round_id)
                        worker.link.deliver(notice)
            case "shutdown":
                self._stop(message.shutdown.grace)
            case kind:
                logger.warning("the driver says something that this agent does not know: %s", kind)

    def _control_ended(self, control: asyncio.Task[None]) -> None:
        if control.cancelled() or (error := control.exception()) is None:
            return
        if not isinstance(error, DriverLostError):
            logger.error("the control stream has failed", exc_info=error)
        logger.error("%s; stopping this host's workers", error)
        self._exit_code = 1
        self._stop(grace=0)

    # Workers.

    def _start_worker(self, order: agent_pb2.StartWorker) -> None:
        if self._stopping.is_set():
            return  # the driver learns of this agent's end instead
        socket_path = self._settings.folder / f"w{order.worker_id}.sock"
        life_path = self._settings.folder / f"w{order.worker_id}.life"
        store_path = self._settings.folder / f"w{order.worker_id}.store"
        environment = worker_environment(
            self._environment,
            run_id=self._settings.run_id,
            worker_id=order.worker_id,
            host=self._settings.host,
            slot=order.slot,
            address=self._address,
            interface=self._interface,
            socket_path=socket_path,
            ready_path=self._ready_path,
            life_path=life_path,
            store_path=store_path,
            papers=self._papers,
            devices=cuda_devices(self._environment),
            stall_limits=self._welcome.stall_limits,
        )
        try:
            life = LifeLock.create(life_path)
            pid, stdout, stderr = self._processes.start(self._welcome.command, environment)
        except (SpawnError, OSError) as error:
            code = error.code if isinstance(error, SpawnError) else CANNOT_START
            reason = str(error) if isinstance(error, SpawnError) else f"could not be started: {error}"
            self._report_exit(order.worker_id, code, "", time.time(), reason)
            life_path.unlink(missing_ok=True)
            return
        background = order.background and priority.lower(pid, priority.BEHIND)
        link = self._link(order.worker_id, socket_path)

        def forward(line: agent_pb2.OutputLine) -> None:
            link.show_life()
            self._forwarder.add(line)

        folder = self._output_folder(order.slot)
        capture = Capture(order.worker_id, order.slot, folder, stdout, stderr, forward)
        muteness = Muteness(lambda: self._ask_where_it_stands(order.worker_id))
        self._workers[order.worker_id] = Worker(
            order.worker_id, pid, capture, link, life, MemoryWatch(pid), background, muteness
        )

    def _ask_where_it_stands(self, worker_id: int) -> None:
        if worker := self._workers.get(worker_id):
            stack_dump.ask(worker.trainer, group=worker.pid)

    def _output_folder(self, slot: int) -> Path | None:
        folder = self._welcome.output_folder
        return Path(folder, f"{self._settings.host}.{slot}") if folder else None

    def _link(self, worker_id: int, socket_path: Path) -> WorkerLink:
        def report(message: notification_pb2.Report) -> None:
            report = agent_pb2.WorkerReport(worker_id=worker_id, report=message)
            self._control.send(agent_pb2.FromAgent(worker_report=report))

        def expired() -> None:
            self._control.send(agent_pb2.FromAgent(lease_expired=agent_pb2.LeaseExpired(worker_id=worker_id)))

        def heard() -> None:
            self._control.send(agent_pb2.FromAgent(worker_heard=agent_pb2.WorkerHeard(worker_id=worker_id)))

        def overdue() -> None:
            if worker := self._workers.get(worker_id):
                self._exit_overdue(worker)

        def lives(seconds: float) -> bool:
            worker = self._workers.get(worker_id)
            if worker is None or stands_still(worker.trainer):
                return False
            if stall := worker.muteness.look(seconds, worker.life.phase, self._welcome.stall_limits):
                report(stall)
            return True

        lease = Lease(self._welcome.worker_lease, self._loop.time)
        bound = self._welcome.exit_timeout
        return WorkerLink(
            self._settings.run_id, worker_id, socket_path, lease, report, expired, overdue, bound, heard, lives
        )

    def _worker_ready(self, worker_id: int, pid: int) -> None:
        if worker := self._workers.get(worker_id):
            worker.link.attach()
            if not worker.trainer:
                worker.trainer = pid
                threading.Thread(target=self._watch, args=(worker,), name=f"life of {worker_id}", daemon=True).start()

    def _watch(self, worker: Worker) -> None:
        """A thread of its own: say that a worker has ended as soon as it has, long before it can be reaped."""
        if worker.background:
            priority.restore(worker.pid)
        if worker.life.wait_for_end():
            worker.trainer_ended = True
            ending = agent_pb2.WorkerEnding(worker_id=worker.worker_id, seen=time.time())
            with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                self._loop.call_soon_threadsafe(self._control.send, agent_pb2.FromAgent(worker_ending=ending))
            priority.lower(worker.pid, priority.LAST)  # its memory is given back while others want to go on

    def _heartbeat(self) -> agent_pb2.Heartbeat:
        """A sign of life, with what workers have said of themselves since the last one."""
        beat = agent_pb2.Heartbeat()
        for worker in self._workers.values():
            if worker.link.standing is not None:
                beat.standings.add(worker_id=worker.worker_id, pid=worker.trainer, standing=worker.link.standing)
                worker.link.standing = None
        return beat

    async def _ping(self) -> None:
        await self._welcomed.wait()
        while True:
            period = Lease(self._welcome.worker_lease, self._loop.time).period
            await asyncio.sleep(min((worker.link.next_tick for worker in self._workers.values()), default=period))
            for worker in list(self._workers.values()):
                self._look_for_effort(worker)
                worker.link.tick()
                worker.memory.look()

    def _look_for_effort(self, worker: Worker) -> None:
        """Once its script has ended, a worker that computes lives."""
        if not worker.link.ending:
            return
        if worker.effort is None:
            window = min(WINDOW, self._welcome.exit_timeout / 4)
            worker.effort = Effort(lambda: processor_seconds(worker.trainer), self._loop.time, window)
        if worker.effort.shown():
            worker.link.show_life()

    def _exit_overdue(self, worker: Worker) -> None:
        """Its script has ended, and its process has not. Where only a wrapper is left, the worker has done its part."""
        if not (worker.trainer_ended and worker.link.parted):
            self._control.send(agent_pb2.FromAgent(exit_overdue=agent_pb2.ExitOverdue(worker_id=worker.worker_id)))
            return
        logger.warning(
            "worker %d: its command went on for %g s after the script had ended well, and is stopped (--exit-timeout)",
            worker.worker_id,
            self._welcome.exit_timeout,
        )
        worker.outstayed = True
        self._stop_worker(worker, TERMINATION_GRACE)

    def _stop_worker(self, worker: Worker, grace: float) -> None:
        worker.stopped = True
        if grace <= 0:
            self._processes.signal_group(worker.pid, signal.SIGKILL)
            return
        self._processes.signal_group(worker.pid, signal.SIGTERM)
        when = self._loop.time() + grace
        if worker.killing is None or when < worker.killing.when():
            if worker.killing:
                worker.killing.cancel()
            worker.killing = self._loop.call_at(when, self._processes.signal_group, worker.pid, signal.SIGKILL)

    def _worker_exited(self, pid: int, code: int) -> None:
        worker = next(worker for worker in self._workers.values() if worker.pid == pid)
        if worker.killing:
            worker.killing.cancel()
        task = self._loop.create_task(self._part_from(worker, code, worker.capture.finish(), time.time()))
        self._exit_reports.add(task)
        task.add_done_callback(self._exit_reports.discard)

    async def _part_from(self, worker: Worker, code: int, tail: str, reaped: float) -> None:
        reason = worker.memory.verdict() if code in KILLED and not worker.stopped else ""
        await worker.link.ended(LAST_WORDS if code >= 0 else 0)
        self._report_exit(worker.worker_id, 0 if worker.outstayed else code, tail, reaped, reason)
        await worker.link.close()
        for kind in ("life", "store"):
            (self._settings.folder / f"w{worker.worker_id}.{kind}").unlink(missing_ok=True)
        del self._workers[worker.worker_id]
        self._see_if_gone()

    def _report_exit(self, worker_id: int, code: int, tail: str, reaped: float, reason: str) -> None:
        exited = agent_pb2.WorkerExited(
            worker_id=worker_id, code=code, tail=wire_text(tail), reaped=reaped, reason=wire_text(reason, REASON_LIMIT)
        )
        self._control.send(agent_pb2.FromAgent(worker_exited=exited))

    # The end.

    def _leave(self, reason: str) -> None:
        """Ask the driver to have this host left in good order: it says Shutdown when that is done."""
        self._control.send(agent_pb2.FromAgent(host_leaving=agent_pb2.HostLeaving(reason=reason)))

    def _terminated(self) -> None:
        """SIGTERM: the first asks the driver, the second ends the workers, the third does so at once."""
        if self._stopping.is_set():
            self._stop(grace=0)
        elif self._draining is None and self._welcomed.is_set():
            self._leave("its agent got SIGTERM")
            self._draining = self._loop.call_later(DRAIN_BOUND, self._terminated)
        else:
            self._exit_code = 128 + signal.SIGTERM
            self._stop(TERMINATION_GRACE)

    def _stop(self, grace: float) -> None:
        for worker in self._workers.values():
            self._stop_worker(worker, grace)
        if not self._stopping.is_set():
            self._kill_by = self._loop.time() + grace
            self._stopping.set()
        self._see_if_gone()

    def _see_if_gone(self) -> None:
        if self._stopping.is_set() and not self._workers:
            self._gone.set()

    async def _end_processes(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._kill_by + REAP_BOUND):
                await self._gone.wait()
        if not await self._processes.close(REAP_BOUND):
            logger.error("the kernel does not end all processes that were killed; they may hang in a system call")
            self._exit_code = 1

    async def _flush(self, control: asyncio.Task[None], forwarding: asyncio.Task[None]) -> None:
        if control.done():
            return  # there is nobody to take it
        self._control.send(agent_pb2.FromAgent(agent_ending=agent_pb2.AgentEnding()))
        self._control.close()
        self._forwarder.close()
        await asyncio.wait({control, forwarding}, timeout=FLUSH_BOUND)
