"""The driver's shell: one event loop that feeds the core one event at a time and does what it orders."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc.aio
import uvloop

from edriver.common.lease import LivedTime
from edriver.common.release import VERSION
from edriver.discovery.errors import UnusableSourceError
from edriver.discovery.poll_filter import PollFilter, Verdict
from edriver.discovery.poller import Poller
from edriver.driver.core import actions, events
from edriver.driver.core.membership import Membership
from edriver.driver.launch.agents import Agents
from edriver.driver.launch.choice import choice
from edriver.driver.launch.invitations import Invitations
from edriver.driver.launch.launcher import LaunchContext
from edriver.driver.launch.local import address_among, interface_address
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.console.failure_report import Tally, failure_report, success_report, with_last_words
from edriver.driver.observe.console.output import Output
from edriver.driver.observe.event_history import Chronicle
from edriver.driver.observe.progress import Pace
from edriver.driver.observe.records.record_file import RecordFile
from edriver.driver.observe.records.recorder import EventBook, Recorder, books_of, describe
from edriver.driver.observe.snapshots import size_of
from edriver.driver.options import RunOptions
from edriver.driver.rpc.agent_service import BEAT, SERVER_OPTIONS, AgentServer
from edriver.driver.rpc.control import ControlServer
from edriver.driver.rpc.credentials_file import CredentialsFile
from edriver.driver.rpc.dial_in_hosts import Arrivals
from edriver.driver.rpc.health_and_reflection import add_introspection
from edriver.driver.rpc.mailbox import Mailbox
from edriver.driver.rpc.orders import orders_of
from edriver.driver.rpc.status import StatusServer
from edriver.driver.rpc.tcp_endpoint import AGENTS, CONTROL, STATUS, Door
from edriver.system.guard import Guard
from edriver.system.leftovers import hold, remove_leftovers
from edriver.system.record_folder import remove_old
from edriver.system.runs import MARK, SOCKET, folder_of
from edriver.text.progress_text import progress_text
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2_grpc, status_pb2_grpc

if TYPE_CHECKING:
    from edriver.driver.observe.metrics.server import MetricsServer

_log = logging.getLogger("edriver.driver")

POLL_INTERVAL: Final = 1.0
"""Seconds between two questions to discovery."""

SHUTDOWN_GRACE: Final = 5.0
"""Seconds that workers get between SIGTERM and SIGKILL when the run ends."""

EXIT_BOUND: Final = 5.0
"""Seconds beyond the workers' grace within which an agent exits by itself."""

HURRY_BOUND: Final = 1.0
"""The same when the operator does not want to wait."""

PROGRESS_PERIOD: Final = 1.0
"""Seconds between two looks at the progress,"""

PROGRESS_LINE_PERIOD: Final = 60.0
"""and between two lines about it."""

INBOX_LIMIT: Final = 10_000


def draw_secret() -> bytes:
    """The secret of a round: as many random bytes as workers expect (membership_proof.SECRET_BYTES)."""
    return secrets.token_bytes(32)


def run(options: RunOptions, run_id: str, output: Output, records: Path | None) -> int:
    """Run to the end; returns the exit code. `records` is the folder for the run's records; None: it has none."""
    folder = folder_of(run_id)
    for leftover in remove_leftovers():
        _log.warning("%s", leftover)
    os.environ[MARK] = str(folder)
    guard = Guard(folder, mark=f"{MARK}={folder}")
    try:
        guard.start()
        folder.mkdir(mode=0o700)
        hold(folder)
        return uvloop.run(Session(options, run_id, output, folder, records).run())
    except FileExistsError as error:
        _log.error("failed: %s cannot be made: %s; it is not this run's and stays", error.filename, error.strerror)
        return 1
    except Exception:  # noqa: BLE001  whatever it is, the operator is told in our words
        _log.exception("failed: a fault of edriver's own, please report it")
        return 1
    finally:
        guard.finish(EXIT_BOUND)


class Session:
    """One run.

    Args:
        options: what the operator wants.
        run_id: the run's name.
        output: where everything is printed.
        folder: the run's own folder.
        records: the folder for its records; None: it has none.
        clock: seconds, monotonic.
        wall_clock: seconds since the epoch, for what users' listeners are told.
        draw: a random number from 0 up to 1 at each call, for the core.
    """

    def __init__(
        self,
        options: RunOptions,
        run_id: str,
        output: Output,
        folder: Path,
        records: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._began = clock()
        self._real_clock = clock
        self._clock = clock = LivedTime(clock, 2 * BEAT)
        self._wall_clock = wall_clock
        self._folder = folder
        self._inbox: Mailbox[events.Event] = Mailbox(INBOX_LIMIT)
        self._membership = Membership(options.settings, clock(), draw=draw)
        self._announcements = Announcements()
        self._pace = Pace(clock)
        self._unanswered = ""
        self._signals: list[signal.Signals] = []
        self._ending = False
        self._hurry = asyncio.Event()
        welcome = agent_pb2.Welcome(
            command=options.command,
            driver_lease=options.driver_timeout,
            worker_lease=options.worker_lease,
            exit_timeout=options.exit_timeout,
            stall_limits=options.stall_limits,
            output_folder=options.output_folder,
        )
        self._arrivals = options.source if isinstance(options.source, Arrivals) else None
        self._dial_in = CredentialsFile(options.dial_in) if options.dial_in else None
        self._onlookers = CredentialsFile(options.status_credentials) if options.status_credentials else None
        self._operators = CredentialsFile(options.control_credentials) if options.control_credentials else None
        self._chronicle = Chronicle(self._membership, self._pace, wall_clock)
        self._options = options
        self._run_id = run_id
        self._records = records
        books = [] if records is None else books_of(records, run_id, self._chronicle.began)
        if options.event_log is not None:
            books.append(EventBook(RecordFile(options.event_log, "event log"), progress=False))
        self._output = output
        self._recorder = Recorder(books, self._chronicle.began, wall_clock)
        self._server = AgentServer(
            run_id,
            welcome,
            self._inbox,
            output.forward,
            clock,
            departed=self._agent_departed,
            papers=lambda: self._door.papers,
            arrivals=self._arrivals,
            heard=self._chronicle.heard,
        )
        self._address = interface_address(options.network_interface) if options.network_interface else ""
        self._control = ControlServer(self._membership, self._inbox.put, self._stop)
        self._status = StatusServer(run_id, self._membership, self._chronicle, wall_clock, options.command, clock)
        self._door = Door(
            run_id,
            self._server,
            self._status,
            self._control,
            self._address,
            options.port,
            secure=not options.insecure,
        )
        self._socket = folder / SOCKET
        admit = self._arrivals.admit if self._arrivals else None
        context = LaunchContext(run_id, options.ssh.port, options.ssh.identity_file, admit)
        secret_of, interface = self._server.secret_of, options.network_interface
        self._agents = Agents(
            choice(options.launcher, context, self._reach),
            Invitations(folder, self._socket, self._door, run_id, os.environ, secret_of, interface),
            self._agent_exited,
            on_start=self._server.started,
            network=self._door.open,
        )
        self._poller = Poller(options.source, PollFilter(), POLL_INTERVAL, self._hosts_observed, clock=wall_clock)
        self._metrics = None if options.metrics is None else self._metrics_server(run_id, *options.metrics)

    def _metrics_server(self, run_id: str, address: str, port: int) -> MetricsServer:
        from edriver.driver.observe.metrics.server import MetricsServer  # prometheus_client, which others do without

        return MetricsServer(run_id, self._membership, self._chronicle, self._poller.polls, address, port)

    async def run(self) -> int:
        """Run to the end; returns the exit code. However it ends, no agent is left."""
        self._watch_signals()
        self._recorder.start(self._begin_records)
        service = grpc.aio.server(options=SERVER_OPTIONS)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._server, service)
        control_pb2_grpc.add_ControlServiceServicer_to_server(self._control, service)
        status_pb2_grpc.add_StatusServiceServicer_to_server(self._status, service)
        await add_introspection(service, (AGENTS, CONTROL, STATUS))
        service.add_insecure_port(f"unix:{self._socket}")
        await service.start()
        try:
            if self._metrics:
                _log.info("metrics for Prometheus: %s", await self._metrics.open())
            await self._invite()
        except OSError as error:
            _log.error("failed: the driver cannot be reached by others: %s", error)
            await self._close(service, grace=0)
            return 1
        try:
            async with asyncio.TaskGroup() as tasks:
                beating = tasks.create_task(self._server.beat())
                discovering = tasks.create_task(self._discover())
                telling = tasks.create_task(self._tell_progress())
                finish = await self._decide()
                discovering.cancel()
                telling.cancel()
                self._output.footer(b"")
                await self._end()
                beating.cancel()
        finally:
            await self._leave_no_agent()
            for file in filter(None, (self._dial_in, self._onlookers, self._operators)):
                file.withdraw()
            # Returns when the last of the workers' output is in.
            await self._close(service, HURRY_BOUND)
        return self._report(finish)

    async def _close(self, service: grpc.aio.Server, grace: float) -> None:
        """Serve nobody any more; calls that are under way have the grace, in seconds."""
        metrics = [self._metrics.close()] if self._metrics else []
        await asyncio.gather(service.stop(grace), self._door.close(grace), *metrics)
        self._recorder.close()

    async def _invite(self) -> None:
        """Write what hosts that dial in, onlookers and operators have to show.

        Raises:
            OSError: that cannot be done.
        """
        door = self._door
        shown = (
            (self._dial_in, door.token, "hosts dial in by: edriver agent --driver {driver} --credentials {path}"),
            (self._onlookers, door.status_token, "its status elsewhere: edriver status --credentials {path}"),
            (self._operators, door.control_token, "steered from elsewhere: edriver drain HOST --credentials {path}"),
        )
        for file, token, words in shown:
            if file is not None:
                await door.open()
                credentials = door.credentials(token)
                file.write(credentials)
                _log.info("%s", words.format(driver=credentials.drivers[0], path=file.path))

    def _begin_records(self) -> None:
        """Say in the records what was run; done by the thread that writes them, as all that asks a disk."""
        if self._records is None:
            return
        settings = self._options.settings
        about = {
            "run_id": self._run_id,
            "version": VERSION,
            "began": self._chronicle.began,
            "command": list(self._options.command),
            "np": settings.np,
            "min_np": settings.min_np,
            "max_np": settings.max_np,
            "hosts": self._options.hosts,
        }
        describe(self._records, about)
        if not self._options.records_asked:
            remove_old(self._records.parent, self._wall_clock())

    # ---- events ----------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        """The first signal ends the run in good order, the second at once."""
        if self._ending or self._signals:
            if not self._hurry.is_set():
                _log.info("%s again: killing the workers", number.name)
            self._hurry.set()
            return
        self._signals.append(number)
        _log.info("%s: stopping the workers (once more: at once)", number.name)
        self._inbox.put(events.StopRequested(f"the driver got {number.name}"))

    def _stop(self, reason: str) -> None:
        """An operator wants the run to end."""
        if not self._ending and not self._signals:
            self._signals.append(signal.SIGTERM)  # it ends as by this one
            _log.info("stopping the workers: %s", reason)
            self._inbox.put(events.StopRequested(reason))

    def _hosts_observed(self, verdict: Verdict) -> None:
        if verdict.error and not verdict.hosts:
            if verdict.error != self._unanswered:
                self._inbox.put(events.DiscoveryFailed(verdict.error))
        elif verdict.changed or self._unanswered:
            self._inbox.put(events.HostsObserved(verdict.hosts))
        self._unanswered = "" if verdict.hosts else verdict.error

    def _agent_exited(self, host: str, agent_id: int, reason: str) -> None:
        self._inbox.put(events.AgentLost(host, agent_id, reason))

    async def _reach(self, host: str) -> str | None:
        return await address_among(host, list(self._membership.roster.hosts), self._address)

    def _agent_departed(self, agent_id: int) -> None:
        self._agents.departed(agent_id)

    async def _discover(self) -> None:
        """Poll the source for the whole run. One that cannot be used as it is ends the run at once."""
        try:
            await self._poller.first()
        except UnusableSourceError as error:
            self._inbox.put(events.SourceUnusable(str(error)))
        else:
            await self._poller.run()

    async def _tell_progress(self) -> None:
        """Record it; show it on a terminal, elsewhere print a line now and then, while there is progress."""
        bar = None
        if os.isatty(2):
            from edriver.driver.observe.console.progress_bar import bar_of_stderr  # rich is for terminals

            bar = bar_of_stderr()
        steps, told_at = 0, self._clock()
        while True:
            await asyncio.sleep(PROGRESS_PERIOD)
            progress = self._pace.progress()
            if not progress:
                continue
            self._recorder.progress(progress)
            if bar:
                self._output.footer(bar.line(progress, size_of(self._membership)))
            elif self._clock() - told_at >= PROGRESS_LINE_PERIOD and progress.steps > steps:
                steps, told_at = progress.steps, self._clock()
                _log.info("%s", progress_text(progress))

    # ---- the core's turn -------------------------------------------------------------------------------------

    async def _decide(self) -> actions.FinishRun:
        """Feed the core and do what it orders, until it ends the run."""
        while True:
            event = await self._next_event()
            _log.debug("event %s", event)
            if isinstance(event, events.AgentConnected):
                self._agents.met(event.agent_id)
            if isinstance(event, events.AgentLost):
                self._forget_agent(event.host, event.agent_id)
            loss = self._announcements.loss(event, self._membership.roster)
            step = self._membership.step(event, self._clock())
            workers = self._membership.roster.workers.values() if step else ()
            host_of = {worker.worker_id: worker.host for worker in workers}
            finish = None
            for action in step:
                _log.debug("action %s", action)
                if isinstance(action, actions.FinishRun):
                    finish = action
                    break
                self._perform(action, host_of)
            # Words come after deeds: whoever waits for its next round does not wait for them.
            lines = [*self._announcements.lines(loss, step)]
            for line in lines:
                _log.info("%s", line.text)
            if told := self._chronicle.take(event, step, loss, lines):
                self._status.announce()
                self._recorder.events(told)
                if self._metrics:
                    self._metrics.observe(told)
            if loss and isinstance(event, events.WorkerStalled):
                _log.info("it stands at\n%s", event.stacks)
            if finish:
                return finish

    async def _next_event(self) -> events.Event:
        """The next event; Ticked when a deadline comes first."""
        deadline = self._membership.next_deadline
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self._clock())):
                event = await self._inbox.get()
        except TimeoutError:
            return events.Ticked()
        assert event is not None, "the inbox is never closed"
        return event

    def _perform(self, action: actions.Action, host_of: Mapping[int, str]) -> None:
        match action:
            case actions.StartAgent(host, agent_id):
                self._server.expect(host, agent_id)
                self._agents.start(host, agent_id)
            case actions.StopAgent(_, agent_id):
                self._stop_agent(agent_id)
            case actions.AbandonAgent(host, agent_id):
                self._forget_agent(host, agent_id)
        for host, message in orders_of(action, host_of, self._wall_clock(), draw_secret):
            self._server.send(host, message)

    def _forget_agent(self, host: str, agent_id: int) -> None:
        """An agent is lost: nothing that it says is heard any more, and as far as it may live it is killed."""
        self._server.give_up(agent_id)
        self._agents.kill(agent_id)
        if self._arrivals is not None:
            self._arrivals.leave(host, agent_id)

    def _stop_agent(self, agent_id: int) -> None:
        """End one agent whose workers are gone; one that does not is killed."""
        if not self._server.shut_down(agent_id, SHUTDOWN_GRACE):
            self._server.give_up(agent_id)
            self._agents.kill(agent_id)
            return
        asyncio.get_running_loop().call_later(SHUTDOWN_GRACE + EXIT_BOUND, self._agents.kill, agent_id)

    # ---- the end ---------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Let the agents end their workers and themselves; in a hurry, at once."""
        self._ending = True
        self._agents.close()
        for agent_id in self._agents.running:
            if not self._server.shut_down(agent_id, SHUTDOWN_GRACE):
                self._server.give_up(agent_id)  # it has no workers yet, and is refused if it comes
                self._agents.kill(agent_id)
        emptied = asyncio.create_task(self._agents.wait_until_empty())
        hurried = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait(
                {emptied, hurried}, timeout=SHUTDOWN_GRACE + EXIT_BOUND, return_when=asyncio.FIRST_COMPLETED
            )
            for agent_id in self._agents.running:
                self._server.shut_down(agent_id, 0.0)
            await asyncio.wait({emptied}, timeout=HURRY_BOUND)
        finally:
            emptied.cancel()
            hurried.cancel()

    async def _leave_no_agent(self) -> None:
        """Kill agents that are still there, and reap them."""
        self._agents.close()
        for agent_id in self._agents.running:
            self._agents.kill(agent_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._agents.wait_until_empty(), EXIT_BOUND)

    def _report(self, finish: actions.FinishRun) -> int:
        """Print how the run ended; returns the exit code."""
        if finish.end is actions.RunEnd.DONE:
            spent = self._membership.budgets
            tally = Tally(
                self._chronicle.round_count,
                failures=spent.failures.total,
                preemptions=spent.preemptions.total,
                resizes=spent.resizes.total,
                unproven=spent.unproven.total,
                seconds=self._real_clock() - self._began,
            )
            _log.info("%s", success_report(tally))
            return 0
        failures = finish.failures
        for event in self._inbox.drain():  # came in while the agents ended their workers
            if isinstance(event, events.WorkerExited):
                failures = with_last_words(failures, event.worker_id, event.tail)
        end = actions.RunEnd.STOPPED if self._signals else finish.end  # it may have ended of what it was stopped by
        _log.error("%s", failure_report(replace(finish, end=end, failures=failures)))
        if self._records and not self._signals:
            _log.error("records: %s", self._records)
        return 128 + self._signals[0] if self._signals else 1
