"""The driver's process: one run from its start to its exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import grpc.aio
import uvloop

from edriver.calls import PROGRESS_VARIABLE
from edriver.common.lease import ProcessClock
from edriver.common.release import VERSION
from edriver.common.run_clock import RunClock
from edriver.driver.agents.registry import HEARTBEAT_INTERVAL
from edriver.driver.config.options import RunOptions
from edriver.driver.feeds.inbound import InboundMessage
from edriver.driver.journal.codec import CodecError
from edriver.driver.journal.journal import EXIT_REPLACED, Head, Journal, JournalError, JournalLostError
from edriver.driver.journal.keyed_random import new_key
from edriver.driver.observe.console.failure_report import Tally, failure_report, success_report, with_last_output
from edriver.driver.observe.console.hints import Hints, last_stop
from edriver.driver.observe.console.output import ROUTINE, Output
from edriver.driver.observe.console.progress_lines import report_progress
from edriver.driver.observe.driver_watch import DriverWatch, watch_run
from edriver.driver.observe.origin import find_origin, found_later, recorded_origin
from edriver.driver.observe.records.recorder import describe, describe_failure
from edriver.driver.run.last_checkpoint import write_last_checkpoint
from edriver.driver.run.reporters import Reporters
from edriver.driver.run.shutdown import EXIT_BOUND, QUICK_EXIT_BOUND
from edriver.driver.run.take_over import HeldClock, PortTakenError, await_agents, await_port_of_run, replay
from edriver.driver.run.wiring import Wiring
from edriver.driver.services.tcp_endpoint import AGENT_SERVICE, CONTROL_SERVICE, STATUS_SERVICE
from edriver.model import actions, events
from edriver.system.guard import Guard
from edriver.system.leftovers import LOCK_NAME, hold, remove_leftovers
from edriver.system.private_files import NotOwnError, OwnFolder
from edriver.system.record_folder import RUN_FILE, remove_old
from edriver.system.runs import RUN_FOLDER_VARIABLE, SOCKET_NAME, folder_of, keep_name
from edriver.text.message_writer import plain
from edriver.v1 import agent_pb2_grpc, control_pb2_grpc, status_pb2, status_pb2_grpc
from edriver.wire.call_faults import CallFaults
from edriver.wire.conversion import timestamp
from edriver.wire.grpc_streams import SERVER_OPTIONS
from edriver.wire.introspection import add_introspection

_log = logging.getLogger("edriver.driver")

MORE_OBJECTS: Final = 10_000
"""New objects after which garbage is searched for. With Python's own 700 that took a run of thousands of workers a
twentieth of its processor time; nearly all garbage goes without a search."""


def run(
    options: RunOptions,
    run_id: str,
    output: Output,
    records: Path | None,
    arguments: Sequence[str],
    begin_journal: Callable[[Head], Journal] | None,
) -> int:
    """Run to the end; returns the exit code.

    Args:
        options: the options of the run.
        run_id: the run's name.
        output: where everything is printed.
        records: the folder for the run's records; None: it has none.
        arguments: the command line, for a driver that takes the run over.
        begin_journal: begins the journal from which one may; None: none may.
    """
    folder = folder_of(run_id)
    head = Head(
        run_id,
        tuple(arguments),
        str(Path.cwd()),
        dict(os.environ),
        new_key(),
        str(folder),
        began=(time.monotonic(), time.time()),
    )
    journal = None
    if begin_journal is not None:
        try:
            journal = begin_journal(head)
        except JournalError as error:
            _log.warning("%s: the run ends if its driver does", error)
    return _run(_session(options, head, output, records, journal), folder, journal)


class Ended(NamedTuple):
    """How a run has ended that was taken over.

    Attributes:
        code: the exit code.
        stopped_before: whether a driver before had been asked to end it, which was then killed.
    """

    code: int
    stopped_before: bool


def resume(
    options: RunOptions,
    journal: Journal,
    records: Path | None,
    output: Output,
    environment: Mapping[str, str],
    *,
    port: int = 0,
    agents_gone: str = "",
) -> Ended:
    """Take a run over whose driver is gone, and run it to the end.

    Args:
        options: the options of the run.
        journal: what the driver has left.
        records: the folder of the run's records, which another machine may not have yet; None: it has none.
        output: where everything is printed.
        environment: the run's environment from now on.
        port: where this driver is to listen; 0: where the last one did.
        agents_gone: why none of the last driver's agents can live; empty: they may.

    Raises:
        JournalError: what it holds is damaged, or this release would have decided otherwise, or does not speak the
            protocol of the run's agents; it is as it was.
    """
    journal.check_protocol()
    head = journal.head
    head = replace(head, incarnation=head.incarnation + 1, port=port or head.port, environment=environment)
    folder = Path(head.folder)
    session = _session(options, head, output, records, journal)
    try:
        session.resume(journal, agents_gone)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        # The same events have been taken in once: what they do not fit is damage.
        _log.debug("the journal cannot be replayed", exc_info=error)
        raise journal.damaged(f"{type(error).__name__}: {error}") from None
    journal.update(head)
    _log.info("run %s: resumed by driver %s of it", head.run_id, head.incarnation)
    code = _run(session, folder, journal)
    return Ended(code, session.stopped_before)


def _session(options: RunOptions, head: Head, output: Output, records: Path | None, journal: Journal | None) -> Session:
    """A session, for the rest of this process's life."""
    session = Session(options, head, output, records, journal)
    gc.freeze()  # a search of all that has been imported for garbage takes as long as the replay of a journal
    gc.set_threshold(MORE_OBJECTS)
    return session


def _clear(folder: Path) -> None:
    """Remove what the last driver has left in the run's own folder.

    Raises:
        NotOwnError: it cannot be removed: something else lies in its place.
    """
    try:
        for name in (f"{LOCK_NAME}.new", SOCKET_NAME):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise NotOwnError(f"{error.filename} cannot be removed: {error.strerror}") from None


def _run(session: Session, folder: Path, journal: Journal | None) -> int:
    os.environ[RUN_FOLDER_VARIABLE] = str(folder)
    for leftover in remove_leftovers():
        _log.warning("%s", leftover)
    guard = Guard(folder, mark=f"{RUN_FOLDER_VARIABLE}={folder}", keeps_folder=journal is not None)
    try:
        guard.start()
        folder.mkdir(mode=0o700, exist_ok=session.resumes)
        with OwnFolder(folder, follow=False):  # where it was gone another account may have made one of this name
            _clear(folder)
            hold(folder)
            if session.name:
                keep_name(folder, session.name)
        return uvloop.run(session.run())  # with it, gRPC's calls cost a seventh less
    except NotOwnError as error:
        _log.error("failed: the run's folder cannot be used: %s", error)
        return 1
    except FileExistsError as error:
        _log.error(
            "failed: %s cannot be created: %s; what is there does not belong to this run and is left as it is",
            error.filename,
            error.strerror,
        )
        return 1
    except Exception:  # noqa: BLE001  the operator gets one sentence and the traceback
        _log.exception("failed: an internal error of edriver, please report it")
        return 1
    finally:
        guard.finish(EXIT_BOUND)
        if journal is not None and (session.over or not session.resumes):
            journal.discard()


@contextmanager
def _optional(resumes: bool, what: str) -> Iterator[None]:
    """What a run can do without does not end one that is resumed."""
    try:
        yield
    except OSError as error:
        if not resumes:
            raise
        _log.warning("the run continues without %s: %s", what, error)


class Session:
    """One run: its services are opened, its parts run until the core ends it, and everything is closed.

    Args:
        options: the options of the run.
        head: what another driver of it has to know.
        output: where everything is printed.
        records: the folder for its records; None: it has none.
        journal: what another driver could take it over from; None if there is none.
        clock: seconds, monotonic.
        run_clock: seconds since the epoch, for all that is written of the run; None: as the machine's clock says now.

    Attributes:
        name: what its user calls it; may be empty.
        resumes: whether another driver had it before.
        over: whether it has ended.
    """

    def __init__(
        self,
        options: RunOptions,
        head: Head,
        output: Output,
        records: Path | None = None,
        journal: Journal | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        run_clock: RunClock | None = None,
    ) -> None:
        self.name = options.name
        self.resumes = False
        self.over = False
        self._agents_gone = ""
        self._to_caller = os.environ.pop(PROGRESS_VARIABLE, None) is not None  # no script that starts a run inherits it
        self._real_clock = clock
        self._clock = ProcessClock(clock, 2 * HEARTBEAT_INTERVAL)
        self._run_clock = run_clock or RunClock()
        self._wall_clock = HeldClock(self._run_clock)
        self._options = options
        self._head = head
        self._output = output
        self._records = records
        self._journal = journal
        self._set_clocks(*head.began)
        self._parts = Wiring(options, head, output, records, self._clock, self._wall_clock, journal, self._leave)
        self._wall_clock.release()
        self._ended: actions.FinishRun | None = None

    def resume(self, journal: Journal, agents_gone: str) -> None:
        """Stand where another driver has stopped, before `run`.

        Args:
            journal: what it has left.
            agents_gone: why none of its agents can live; empty: they may.

        Raises:
            JournalError: it cannot be read, or written, or this driver would have ordered something else, or knows
                what has no form in it.
        """
        self.resumes = True
        self._agents_gone = agents_gone
        self._ended = replay(self._parts, journal, self._records, self._set_clocks)
        wall_clock = self._wall_clock()
        try:
            state = self._parts.loop.state
        except CodecError as error:  # a defect of edriver's: the journal is whole
            raise journal.not_taken_over(journal.unwritable(error)) from None
        # What comes next is written in this release's format, and has nothing before it that another would replay.
        journal.write_snapshot(self._clock(), wall_clock, state)
        self._run_clock.go_on_after(wall_clock)  # another machine's clock may be behind
        self._wall_clock.release()

    @property
    def stopped_before(self) -> bool:
        """Whether another driver had been asked to end it, and nobody has asked this one, however late."""
        stopped = self._ended is not None and self._ended.end is actions.RunEnd.STOPPED
        return self.over and stopped and not self._parts.stops.requested

    async def run(self) -> int:
        """Run to the end; returns the exit code. However it ends, no agent is left."""
        parts = self._parts
        asked: signal.Signals | None = None
        if self.resumes and self._head.port:
            bound = self._options.driver_timeout
            try:
                asked = await await_port_of_run(parts.endpoint.address, self._head.port, bound, self._real_clock)
            except PortTakenError as error:
                self._leave_run(error.exit_code, str(error))
        parts.stops.watch_signals()
        if asked is not None:  # a supervisor passes on at once what it was sent while there was no driver
            parts.stops.signalled(asked)
        if self._journal is not None:
            loop = asyncio.get_running_loop()

            def lost(error: JournalLostError) -> None:
                loop.call_soon_threadsafe(self._leave, error)

            self._journal.on_lost(lost)
        if self.resumes:
            try:
                await await_agents(parts, self._head, self._agents_gone)
            except OSError as error:  # another process was faster
                self._leave_run(1, f"this driver cannot listen: {error}")
        parts.status.origin = self._origin = found_later(self._find_origin)
        parts.recorder.start(self._begin_records)
        if parts.output_recorder is not None:
            parts.output_recorder.start()
        service = await self._serve()
        reporters = Reporters(self._options.report_to, self._head.run_id, resumed=self._head.incarnation > 1)
        try:
            with _optional(self.resumes, "metrics"):
                if parts.metrics:
                    _log.info("metrics for Prometheus: %s", await parts.metrics.open())
            with _optional(self.resumes, "a port for probes"):
                if parts.health:
                    _log.info("health for probes: port %s", await parts.health.open())
            with _optional(self.resumes, "new credentials files"):
                await parts.credentials.write()
            reporters.start()
            parts.listens.set()
        except OSError as error:
            _log.error("failed: the driver cannot listen: %s", error)
            await self._close(service, grace=0)
            return 1
        try:
            async with asyncio.TaskGroup() as tasks:
                beating = tasks.create_task(parts.registry.send_heartbeats())
                discovering = tasks.create_task(parts.discovery.run())
                asking = tasks.create_task(parts.broker.run()) if parts.broker else None
                telling = tasks.create_task(
                    report_progress(
                        parts.event_history,
                        parts.usage,
                        parts.recorder,
                        self._output,
                        self._clock,
                        to_caller=self._to_caller,
                    )
                )
                driver = DriverWatch(self._real_clock, self._run_clock.behind_machine, self._unwritten)
                watching = tasks.create_task(
                    watch_run(parts.event_history, parts.loop.publish, driver, parts.loop.warn)
                )
                finish = self._ended or await parts.loop.run()
                watching.cancel()
                discovering.cancel()
                if asking:
                    asking.cancel()
                telling.cancel()
                self._output.footer(b"")
                parts.stops.note_end()
                await write_last_checkpoint(
                    parts.membership.memory,
                    parts.membership.roster,
                    parts.inbox,
                    parts.registry.send,
                    parts.shutdown.stop_workers,
                    parts.stops.hurry,
                )
                await parts.shutdown.end()
                beating.cancel()
                self.over = True
                finish = self._completed(finish)
                parts.loop.publish(parts.event_history.end(finish))
                parts.recorder.end_with(lambda: self._record_failure(finish))
        finally:
            await parts.shutdown.leave_no_agent()
            if parts.broker:
                await parts.broker.close()
            parts.credentials.withdraw()
            if parts.metrics and parts.event_history.over:
                await parts.metrics.last_scrape(parts.stops.hurry)
            if parts.event_history.over:
                await reporters.end(parts.stops.hurry)
            reporters.close()
            # Returns when the last of the workers' output is in.
            await self._close(service, QUICK_EXIT_BOUND)
        return self._report(finish)

    def _set_clocks(self, clock: float, wall_clock: float) -> None:
        self._clock.go_on_from(clock)
        self._wall_clock.hold(wall_clock)

    def _leave(self, error: JournalLostError) -> NoReturn:
        """End this process as if it had been killed: another driver may have the run, with its agents, by now."""
        self._leave_run(
            EXIT_REPLACED, f"this driver leaves run {self._head.run_id}, which continues without it: {error}"
        )

    def _leave_run(self, code: int, why: str) -> NoReturn:
        """End this process as if it had been killed: the agents of this machine are left alone, too."""
        _log.error("%s", why)
        self._close_records()
        self._output.close()
        os._exit(code)

    async def _serve(self) -> grpc.aio.Server:
        """Serve agents and commands of this machine."""
        service = grpc.aio.server(options=SERVER_OPTIONS, interceptors=(CallFaults(),))
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._parts.server, service)
        control_pb2_grpc.add_ControlServiceServicer_to_server(self._parts.control, service)
        status_pb2_grpc.add_StatusServiceServicer_to_server(self._parts.status, service)
        await add_introspection(service, (AGENT_SERVICE, CONTROL_SERVICE, STATUS_SERVICE))
        service.add_insecure_port(f"unix:{self._parts.socket}")
        await service.start()
        return service

    async def _close(self, service: grpc.aio.Server, grace: float) -> None:
        """Stop serving; calls that are under way have the grace, in seconds."""
        await self._parts.status.close()
        metrics = [self._parts.metrics.close()] if self._parts.metrics else []
        health = [self._parts.health.close()] if self._parts.health else []
        await asyncio.gather(service.stop(grace), self._parts.endpoint.close(grace), *metrics, *health)
        self._close_records()

    def _close_records(self) -> None:
        """Wait until the records are written, for a few seconds at most."""
        if self._parts.output_recorder is not None:
            self._parts.output_recorder.close()
        self._parts.recorder.close()

    def _find_origin(self) -> status_pb2.Origin:
        """What its first driver found, if that is recorded here; else what this one finds."""
        known = recorded_origin(self._records / RUN_FILE) if self.resumes and self._records is not None else None
        return known or find_origin(Path.cwd())

    def _unwritten(self) -> str:
        """What cannot be written of the records, and why; empty: all can be."""
        output = self._parts.output_recorder
        return self._parts.recorder.fault or ("" if output is None else output.fault)

    def _begin_records(self) -> None:
        """Write the description of the run to its records; done by the thread that writes them, as all disk access."""
        if self._records is None or (self._records / RUN_FILE).exists():
            return
        settings = self._options.settings
        about = {
            "run_id": self._head.run_id,
            "version": VERSION,
            "start_time": timestamp(self._parts.event_history.began).ToJsonString(),
            "name": self._options.name,
            "tags": dict(self._options.tags),
            "command": list(self._options.command),
            "np": settings.np,
            "min_np": settings.min_np,
            "max_np": settings.max_np,
            "mode": self._options.mode.mode.value,
            "hosts": self._options.hosts,
        }
        origin = self._origin.result()
        about["origin"] = plain(origin)
        if origin.commit:
            about["git"] = {"commit": origin.commit, "changed": origin.changed}
        describe(self._records, about)
        if not self._options.records_asked:
            remove_old(self._records.parent, self._wall_clock())

    def _report(self, finish: actions.FinishRun) -> int:
        """Print how the run ended; returns the exit code."""
        if finish.end is actions.RunEnd.DONE:
            view = self._parts.event_history.view
            spent_time = self._parts.event_history.ledger.time_spent(self._wall_clock())
            tally = Tally(
                view.rounds,
                failures=view.count("failures"),
                preemptions=view.count("preemptions"),
                resizes=view.count("resizes"),
                unproven=view.count("unproven"),
                steps_lost=view.steps_lost,
                seconds=self._parts.event_history.lasted() or 0.0,
                goodput=spent_time.goodput if spent_time.HasField("goodput") else None,
                # A function that edriver.launch calls need not be elastic.
                counts_steps=self._options.mode.mode.members_survive and not self._options.calls_function,
            )
            _log.info("%s", success_report(tally))
            self._say_where_records_are()
            return 0
        _log.error("%s", failure_report(finish, self._hints))
        self._say_where_records_are()
        stopped_by = self._parts.stops.signal
        return 128 + stopped_by if stopped_by else 1

    def _say_where_records_are(self) -> None:
        if self._records is not None:
            named = self._head.run_id if self._options.records_asked is False else shlex.quote(str(self._records))
            _log.log(ROUTINE, "records: %s", self._records)
            _log.log(ROUTINE, "for a report: edriver report %s", named)

    def _completed(self, finish: actions.FinishRun) -> actions.FinishRun:
        """How the run ended, with what came in while the agents ended their workers."""
        if finish.end is actions.RunEnd.DONE:
            return finish
        failures, workers = finish.failures, self._parts.membership.roster.workers
        for found in self._parts.inbox.drain():
            event = found.event if isinstance(found, InboundMessage) else found
            if isinstance(event, events.WorkerExited) and (worker := workers.get(event.worker_id)):
                failures = with_last_output(failures, worker.name, event, stopped=not worker.live)
        # It may have ended of what it was stopped by.
        end = actions.RunEnd.STOPPED if self._parts.stops.signal else finish.end
        return replace(finish, end=end, failures=failures)

    def _record_failure(self, finish: actions.FinishRun) -> None:
        if self._records and finish.end is actions.RunEnd.FAILED:
            describe_failure(self._records, failure_report(finish, self._hints))

    @property
    def _hints(self) -> Hints:
        survive = self._options.settings.mode.members_survive
        return Hints(survive, "" if survive else last_stop(self._parts.event_history.rounds))
