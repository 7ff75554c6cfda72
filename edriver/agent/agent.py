"""The agent: one per host. It starts and reaps the host's workers, and carries what passes between them and the driver.

This file puts its parts together and knows when the agent ends. What the driver orders reaches the workers from
control_stream.py through host_workers.py. Everything here runs in one event loop, in the main thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections.abc import Awaitable, Callable, Mapping

from edriver.agent.control_stream import FIRST_LEASE, ControlStream, DriverConnectionError, DriverUnavailableError
from edriver.agent.forward import OutputForwarder
from edriver.agent.health.memory_kills import MemoryKills
from edriver.agent.host_workers import HostWorkers
from edriver.agent.resources.changes import UsageReports
from edriver.agent.resources.processes import ended_among
from edriver.agent.resources.sample import Sample
from edriver.agent.resources.sampling import Sampling
from edriver.agent.settings import AgentSettings
from edriver.agent.worker import TERMINATION_GRACE
from edriver.agent.worker_settings import WorkerSettings
from edriver.agent.workers.ready_socket import READY_SOCKET, ReadySocket
from edriver.common.release import PROTOCOL, VERSION
from edriver.system.guard import Guard
from edriver.system.proc_stat import own_processors
from edriver.v1 import agent_pb2, agent_pb2_grpc, cause_pb2
from edriver.wire.conversion import duration, span_seconds

logger = logging.getLogger("edriver.agent")

DIAL_IN_TIMEOUT = 600.0
"""Seconds that an agent that dials in on its own waits for the driver to listen, and to admit its host."""

OUT_OF_MEMORY = (cause_pb2.CAUSE_KIND_OUT_OF_MEMORY, cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY)
"""Causes of an exit by which the kernel's kill of a worker is explained."""

LAST_CHECKPOINT_TIMEOUT = 120.0
"""Seconds that workers have to reach their next boundary and to write a checkpoint once their run has no driver any
more."""

COPY_WINDOW = 5.0
"""Seconds after a SIGTERM within which others are copies of it."""

FLUSH_TIMEOUT, FLUSH_LIMIT = 2.0, 8.0
"""Seconds within which the driver must take one more batch of the last lines, and all of them: megabytes may wait, and
a busy driver takes them slowly."""


class Agent:
    """One host's agent. Made and run in one event loop.

    Args:
        settings: see AgentSettings.
        stub: the driver's service.
        environment: the agent's own, which its workers inherit.
        guard: clears up after the agent.
        nothing_listens: looks whether the driver's address refuses connections.
        welcomed: set when the driver has let the agent in.
    """

    def __init__(
        self,
        settings: AgentSettings,
        stub: agent_pb2_grpc.AgentServiceAsyncStub,
        environment: Mapping[str, str],
        guard: Guard,
        nothing_listens: Callable[[], Awaitable[bool]] | None = None,
        welcomed: asyncio.Event | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave_timeout = settings.leave_timeout
        self._hello = agent_pb2.Hello(
            run_id=settings.run_id,
            host=settings.host,
            agent_id=settings.agent_id,
            pid=os.getpid(),
            version=VERSION,
            protocol=PROTOCOL,
            slots=settings.slots,
            secret=settings.secret,
            processors=own_processors(),
        )
        first_lease = FIRST_LEASE if settings.agent_id else DIAL_IN_TIMEOUT
        self._forwarder = OutputForwarder(stub, settings.agent_id, settings.secret)
        self._ready_path = settings.folder / READY_SOCKET
        self._worker_settings = WorkerSettings(settings, environment)
        self._workers = HostWorkers(
            settings, self._worker_settings, guard, self._send, self._forwarder.add, lambda: self._control.is_open
        )
        self._control = ControlStream(
            stub,
            self._hello,
            self._loop.time,
            self._take_welcome,
            self._workers.take,
            self._take_shutdown,
            self._heartbeat,
            first_lease,
            nothing_listens,
            self._workers.take_heartbeat,
            self._worker_settings.clock,
        )
        self._usage = UsageReports(self._loop.time)
        self._memory_kills = MemoryKills(
            lambda kill: self._control.send(agent_pb2.ConnectRequest(memory_kill=kill)), ended_among
        )
        self._workers.standby_killed = self._memory_kills.explained
        self._welcomed = welcomed or asyncio.Event()
        self._draining: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._kill_by = 0.0
        self._exit_code = 0
        self._signalled_at = -math.inf
        self._left_code = settings.left_code

    async def run(self) -> int:
        """Serve the driver until it sends Shutdown, SIGTERM arrives, or the driver is lost.

        Returns:
            the agent's exit code: 0 after Shutdown, or that for leaving a run in progress; 143 after SIGTERM, 1 if the
            driver was lost or something of what was killed is still there.
        """
        self._workers.open()
        self._loop.add_signal_handler(signal.SIGTERM, self._signalled)
        self._loop.add_signal_handler(signal.SIGUSR1, self._leave, "its agent received SIGUSR1")
        # Ctrl-C is the driver's business. A handler, because workers would inherit that a signal is ignored.
        self._loop.add_signal_handler(signal.SIGINT, lambda: None)
        ready = ReadySocket(self._ready_path, self._workers.listens)
        control = asyncio.create_task(self._control.run())
        control.add_done_callback(self._control_ended)
        forwarding = asyncio.create_task(self._forwarder.run())
        pinging = asyncio.create_task(self._ping())
        sampling = asyncio.create_task(self._sample())
        try:
            await self._stopping.wait()
            await self._end_processes()
            await self._flush(control, forwarding)
        finally:
            for task in (control, forwarding, pinging, sampling):
                task.cancel()
            await asyncio.wait({control, forwarding, pinging, sampling})
            ready.close()
        return self._exit_code

    # The driver.

    def _take_welcome(self, welcome: agent_pb2.Welcome) -> None:
        self._hello.agent_id = self._forwarder.agent_id = welcome.agent_id or self._hello.agent_id
        self._hello.secret = self._forwarder.secret = welcome.secret or self._hello.secret
        self._worker_settings.take(welcome)
        if not self._welcomed.is_set():
            try:
                self._worker_settings.find_address()
            except (OSError, ValueError) as error:
                logger.error("the workers here cannot be reached at any address: %s", error)
                self._exit_code = 1
                self._stop(grace=0)
                return
        self._usage.forget()
        self._workers.welcomed()
        self._welcomed.set()

    def _take_shutdown(self, order: agent_pb2.Shutdown) -> None:
        if order.run_continues and not self._exit_code:
            self._exit_code = self._left_code
        self._shut_down(span_seconds(order.grace))

    def _control_ended(self, control: asyncio.Task[None]) -> None:
        if control.cancelled() or (error := control.exception()) is None:
            return
        if not isinstance(error, DriverConnectionError):
            logger.error("the control stream has failed", exc_info=error)
        logger.error("%s; stopping this host's workers", error)
        self._exit_code = 1
        if isinstance(error, DriverUnavailableError) and self._control.resumable and not self._stopping.is_set():
            self._workers.part_with_run(LAST_CHECKPOINT_TIMEOUT)
            self._end_within(LAST_CHECKPOINT_TIMEOUT)
        else:
            self._stop(grace=0)

    async def _ping(self) -> None:
        await self._welcomed.wait()
        await self._workers.ping()

    # Messages to the driver.

    def _send(self, message: agent_pb2.ConnectRequest) -> None:
        """Send what is said of a worker; before its failure, that the kernel has killed what it had started."""
        report, exited = message.worker_report, message.worker_exited
        if exited.cause.kind in OUT_OF_MEMORY:
            self._memory_kills.explained()
        elif report.report.HasField("worker_failed") or exited.code > 0:
            self._memory_kills.check(self._workers.own_processes(), report.worker_id or exited.worker_id)
        self._control.send(message)

    def _heartbeat(self) -> agent_pb2.Heartbeat:
        period = self._control.progress_period
        heartbeat = self._workers.heartbeat(period)
        self._usage.add_to(heartbeat, period)
        return heartbeat

    async def _sample(self) -> None:
        """Have the use of resources sampled, again and again."""
        await self._welcomed.wait()
        await Sampling(self._workers.places, self._take_sample).run()

    def _take_sample(self, sample: Sample) -> None:
        self._memory_kills.check(self._workers.own_processes())
        self._memory_kills.note(sample.processes)
        sample.host.memory_kills = self._memory_kills.total
        sample.host.standbys = self._workers.standbys
        self._workers.free_memory = sample.host.memory_limit_bytes - sample.host.memory_bytes
        self._usage.take(sample)

    # The end.

    def _leave(self, reason: str) -> None:
        """Ask the driver to drain this host: it sends Shutdown when that is done."""
        drain = agent_pb2.DrainRequested(reason=reason, within=duration(self._leave_timeout))
        self._send(agent_pb2.ConnectRequest(drain_requested=drain))

    def _signalled(self) -> None:
        """SIGTERM. Where Slurm ends a job, it sends one to each process of a step, and srun has it send another."""
        now = self._loop.time()
        if now - self._signalled_at >= COPY_WINDOW:
            self._signalled_at = now
            self._terminated()

    def _terminated(self) -> None:
        """SIGTERM: the first asks the driver, the second ends the workers, the third does so at once."""
        if self._stopping.is_set():
            self._stop(grace=0)
        elif self._draining is None and self._welcomed.is_set():
            self._leave("its agent received SIGTERM")
            self._draining = self._loop.call_later(self._leave_timeout, self._leave_in_time)
        else:
            self._exit_code = 128 + signal.SIGTERM
            self._stop(TERMINATION_GRACE)

    def _leave_in_time(self) -> None:
        """The driver has not ended this agent by now. It may have it write a checkpoint to disk once the workers are
        gone: then this agent stays until it is killed.
        """
        if self._workers.keep_checkpoints_alone and self._control.is_open:
            self._draining = None
        else:
            self._terminated()

    def _shut_down(self, grace: float) -> None:
        """The driver wants this agent to end; unless that is in a hurry, its workers say first how far they are."""
        if grace <= 0 or self._stopping.is_set():
            self._stop(grace)
        elif self._asking is None:
            self._asking = self._loop.create_task(self._ask_and_stop(grace))

    async def _ask_and_stop(self, grace: float) -> None:
        await self._workers.ask()
        self._control.send(agent_pb2.ConnectRequest(heartbeat=self._workers.heartbeat()))
        self._stop(grace)

    def _stop(self, grace: float) -> None:
        self._workers.stop_all(grace)
        if not self._stopping.is_set():
            self._end_within(grace)

    def _end_within(self, seconds: float) -> None:
        """The workers are about to end; what is left of them after so many seconds is killed."""
        self._kill_by = self._loop.time() + seconds
        self._stopping.set()

    async def _end_processes(self) -> None:
        if not await self._workers.close(self._kill_by):
            logger.error("some processes that were killed have not ended; they may hang in a system call")
            self._exit_code = 1

    async def _flush(self, control: asyncio.Task[None], forwarding: asyncio.Task[None]) -> None:
        if control.done():
            return  # the driver accepts no further messages
        self._send(agent_pb2.ConnectRequest(agent_ending=agent_pb2.AgentEnding()))
        self._control.close()
        self._forwarder.close()
        pending = {control, forwarding}
        give_up_at = self._loop.time() + FLUSH_LIMIT
        taken = -1
        while pending and taken < self._forwarder.taken and self._loop.time() < give_up_at:
            taken = self._forwarder.taken
            _, pending = await asyncio.wait(pending, timeout=FLUSH_TIMEOUT)
