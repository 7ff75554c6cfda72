"""The event loop's turn with the core: one event goes in, its orders are performed, and the words follow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, NoReturn

from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.core.membership import Membership
from edriver.driver.feeds.inbound import Inbound, InboundMessage
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.journal.codec import CodecError, Json
from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.journal import Head, Journal, JournalError, JournalLostError, JournalRecord
from edriver.driver.journal.keyed_random import KeyedRandom
from edriver.driver.journal.orders import OrderCheck, order_text
from edriver.driver.launch.agents import Agents
from edriver.driver.observe.cause_text import Line, cause_text
from edriver.driver.observe.console.announcements import Announcements, lost_steps_text
from edriver.driver.observe.console.output import ROUTINE
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.records.recorder import Recorder
from edriver.driver.run.driver_state import DriverState
from edriver.driver.run.shutdown import Shutdown
from edriver.driver.services.status import StatusServer
from edriver.model import actions, events
from edriver.model.cause import Cause, CauseKind, Done, MemoryKill, ReportedText
from edriver.model.plan import RoundPlan
from edriver.runview.run_view import ENDS
from edriver.v1 import agent_pb2, status_pb2
from edriver.wire.orders import orders_of

_log = logging.getLogger("edriver.driver")

_ROUTINE_KINDS: Final = frozenset(
    {CauseKind.WORKERS_AWAITED, CauseKind.BOOT_AWAITED, CauseKind.ROUND_RUNS, CauseKind.ALL_DONE}
)


SNAPSHOT_DELAY: Final = 1.0
"""Seconds after an order within which a snapshot follows, if nothing else happens: what comes after it another release
can take over, whatever it would have ordered."""

SNAPSHOT_QUIET: Final = 0.25
"""Seconds without an event that such a snapshot waits for. At a thousand hosts it takes 0.4 s, and would delay workers
that report the end of a round or wait for their place in the next one."""

SNAPSHOT_PATIENCE: Final = 10.0
"""Seconds after the order at which it no longer waits for a pause, and no event breaks it off."""

SNAPSHOT_SLICE: Final = 0.01
"""Seconds for which a snapshot is written before the event loop's other tasks have a turn: heartbeats, for instance."""

TURN: Final = 0.02
"""Seconds for which events are taken in before the other tasks have a turn: what agents send must be read even while
thousands of workers report at once, or their leases end."""

SNAPSHOT_PAUSE: Final = 20
"""The pause before another snapshot for such a reason, as a multiple of the duration of the last one."""


class Decision(NamedTuple):
    """What follows from an event, before any of it is done.

    Attributes:
        entry: the event.
        loss: what it means to observers; None: nothing.
        step: what the core does about it.
        messages: of each action in it, the orders to agents, with their hosts.
        orders: the same as the journal remembers them; empty without a journal.
    """

    entry: JournalEntry
    loss: Cause | None
    step: Sequence[actions.Action]
    messages: Sequence[Sequence[tuple[str, agent_pb2.ConnectResponse]]]
    orders: Sequence[str]


class CoreLoop:
    """Feeds events to the core, and carries out its actions.

    Args:
        membership: the core.
        inbox: the source of events.
        registry: sends agents their orders.
        agents: starts agents.
        shutdown: ends agents.
        event_history: the history of the run, for observers and records.
        status: serves observers.
        recorder: writes the records.
        journal: the journal from which another driver could continue, or None.
        draws: draws the secrets of rounds.
        clock: a monotonic clock, in seconds.
        wall_clock: seconds since the epoch, for users' listeners.
        leave: ends this process at once, because another driver may have the journal.
    """

    def __init__(
        self,
        membership: Membership,
        inbox: Mailbox[Inbound],
        registry: AgentRegistry,
        agents: Agents,
        shutdown: Shutdown,
        event_history: EventHistory,
        status: StatusServer,
        recorder: Recorder,
        journal: Journal | None,
        draws: KeyedRandom,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        leave: Callable[[JournalLostError], NoReturn],
    ) -> None:
        self._membership = membership
        self._inbox = inbox
        self._registry = registry
        self._agents = agents
        self._shutdown = shutdown
        self._announcements = Announcements()
        self._event_history = event_history
        self._status = status
        self._recorder = recorder
        self._journal = journal
        self._draws = draws
        self._state = DriverState(membership, event_history, self._announcements, registry, draws)
        self._clock = clock
        self._wall_clock = wall_clock
        self._leave = leave
        self._ended: actions.FinishRun | None = None  # only of a driver before this one
        self._ordered_at: float | None = None  # the first order since the last snapshot
        self._no_snapshot_before = 0.0
        self._latest_event = -math.inf  # when it was taken in

    async def run(self) -> actions.FinishRun:
        """Feed the core and do what it orders, until it ends the run."""
        began = self._clock()
        try:
            while True:
                if self._clock() - began >= TURN:
                    await asyncio.sleep(0)
                    began = self._clock()
                await self._write_due_snapshot()
                if not (found := await self._next_events()):
                    continue
                records = [self._journal_record(one) for one in found]
                await self._append_to_journal(records)
                for n, (entry, link) in enumerate(records):
                    if link is not None:
                        self._registry.mark_durable(*link[:2])
                    if entry is not None and (finish := await self._take(entry)):
                        for later in found[n + 1 :]:
                            self._inbox.put(later)
                        return finish
                self._latest_event = self._clock()
        finally:
            self._registry.close()

    def replay(self, entries: Iterable[JournalEntry], orders: Iterable[str]) -> actions.FinishRun | None:
        """Take in what another driver of this run was given, and launch and announce nothing.

        Args:
            entries: the events, oldest first.
            orders: what that driver ordered, oldest first.

        Returns:
            the end of the run, if they led to that.

        Raises:
            OtherOrderError: this driver would have ordered something else.
        """
        given = OrderCheck(orders)
        for entry in entries:
            if entry.progress:
                beat = agent_pb2.WorkerHeartbeat.FromString(entry.progress)
                self._event_history.record_progress(beat)
            decision = self._decide(entry)
            given.compare(decision.orders)
            if finish := self._act(decision, replayed=True):
                self._ended = finish
                break
        given.finish()
        return self._ended

    def _decide(self, entry: JournalEntry) -> Decision:
        """Have the core take in an event."""
        event = entry.event
        _log.debug("event %s", event)
        loss = self._announcements.loss(event, self._membership.roster)
        step = self._membership.step(event, entry.clock)
        workers = self._membership.roster.workers
        messages, orders = [], []
        for action in step:
            _log.debug("action %s", action)
            if self._journal is not None and (order := order_text(action, self._draws.count)) is not None:
                orders.append(order)
            messages.append([*orders_of(action, workers, entry.wall_clock, self._draws.secret, cause_text)])
        return Decision(entry, loss, step, messages, orders)

    async def _take(self, entry: JournalEntry) -> actions.FinishRun | None:
        """Take in an event, and do what follows once the journal has that, too; returns the end of the run, if any."""
        decision = self._decide(entry)
        if decision.orders and self._journal is not None:
            await self._write(self._journal, lambda journal: journal.append_orders(decision.orders))
            if self._ordered_at is None:
                self._ordered_at = self._clock()
        return self._act(decision, replayed=False)

    def _act(self, decision: Decision, *, replayed: bool) -> actions.FinishRun | None:
        entry, loss, step = decision.entry, decision.loss, decision.step
        event = entry.event
        if isinstance(event, events.AgentConnected):
            self._registry.note_connected(event.agent_id)
            self._agents.connected(event.agent_id)
        if isinstance(event, events.AgentLost):
            self._shutdown.forget_agent(event.host, event.agent_id)
        if isinstance(event, events.SourcesLoaded):
            self._note_sources(event, replayed)
        if isinstance(event, events.ScriptWarned):
            self._note_script(event, replayed)
        if isinstance(event, events.CheckpointsHeld) and not replayed:
            self._warn_of_checkpoints(event)
        finish = None
        for action, messages in zip(step, decision.messages, strict=True):
            if isinstance(action, actions.FinishRun):
                finish = action
                break
            self._perform(action, messages)
        # Act first, then print: workers that wait for their next round must not wait for output.
        lines = [*self._announcements.lines(loss, step)]
        view = self._event_history.view
        round_before, lost_before = view.round_id, view.steps_lost
        new_events = self._event_history.take(event, step, loss, lines)
        if replayed:
            return finish
        for line in lines:
            usual = ROUTINE if self._is_routine(line.cause) else logging.INFO
            _log.log(logging.WARNING if line.is_failure else usual, "%s", line.text)
        self.publish(new_events)
        for plan in [action for action in step if isinstance(action, RoundPlan)]:
            of_another_driver = 0 < round_before.incarnation < plan.round_id.incarnation
            if text := lost_steps_text(plan, view.steps_lost - lost_before, at_least=of_another_driver):
                _log.info("%s", text)
        if loss and isinstance(event, events.WorkerStalled):
            _log.info("its threads are at\n%s", event.stacks)
        return finish

    def _is_routine(self, cause: Cause) -> bool:
        """Whether each run says this that has lost nothing and has not been resized."""
        uneven = isinstance(cause.detail, Done) and cause.detail.fewest != cause.detail.most
        disturbed = any(self._event_history.view.count(end) for end in ENDS)
        return cause.kind in _ROUTINE_KINDS and not uneven and not disturbed

    def _journal_record(self, found: Inbound) -> JournalRecord:
        if not isinstance(found, InboundMessage):
            return JournalRecord(JournalEntry(self._clock(), self._wall_clock(), found))
        if found.event is None:
            return JournalRecord(None, found.link)
        return JournalRecord(JournalEntry(self._clock(), self._wall_clock(), found.event, found.progress), found.link)

    async def _append_to_journal(self, records: Sequence[JournalRecord]) -> None:
        """Have the journal hold what arrives before anything is done about it."""
        if self._journal is not None:
            await self._write(self._journal, lambda journal: journal.append(records))

    async def write_head(self, head: Head) -> None:
        """Have the journal hold this head."""
        if self._journal is not None:
            await self._write(self._journal, lambda journal: journal.update(head))

    @property
    def state(self) -> bytes:
        """All that follows from the events that the core was given, for a snapshot."""
        return self._state.to_bytes(self._ended)

    def restore(self, state: Json) -> None:
        """Take over the state of another driver of this run, before this one has done anything.

        Args:
            state: the other driver's state, as read from JSON.

        Raises:
            ValueError: it is not a valid state.
        """
        self._ended = self._state.restore(state)

    @property
    def _snapshot_due(self) -> float | None:
        """When a snapshot is to be written for an order, unless further events come; None: there was no order."""
        if self._ordered_at is None:
            return None
        pause = min(self._latest_event + SNAPSHOT_QUIET, self._ordered_at + SNAPSHOT_PATIENCE)
        return max(self._ordered_at + SNAPSHOT_DELAY, self._no_snapshot_before, pause)

    async def _write_due_snapshot(self) -> None:
        """Have the journal hold what follows from its events in place of these: when they are many, and soon after
        each order. An event that arrives meanwhile is not kept waiting, unless there are too many of them in it.
        """
        journal = self._journal
        if journal is None or not self._inbox.empty:
            return
        began = self._clock()
        due = self._snapshot_due
        soon = due is not None and began >= due
        if not (soon or journal.wants_snapshot):
            return
        try:
            overdue = self._ordered_at is not None and began >= self._ordered_at + SNAPSHOT_PATIENCE
            state = await self._written_state(journal, whole=overdue)
        except CodecError as error:  # a defect of edriver's, which must not cost the run
            self._give_up_journal(journal.unwritable(error))
            return
        if state is not None:
            clock, wall_clock = self._clock(), self._wall_clock()
            await self._write(journal, lambda journal: journal.write_snapshot(clock, wall_clock, state))
        now = self._clock()
        self._no_snapshot_before = now + SNAPSHOT_PAUSE * (now - began)
        if state is not None:
            self._ordered_at = None

    async def _written_state(self, journal: Journal, *, whole: bool) -> bytes | None:
        """The state, written in slices between which the event loop goes on; None: an event has come first.

        Args:
            journal: into which it will be written.
            whole: whether events wait until it is.

        Raises:
            CodecError: something has no form in the journal.
        """
        written: list[str] = []
        began = self._clock()
        with contextlib.closing(self._state.pieces(self._ended)) as pieces:
            for piece in pieces:
                written.append(piece)
                if self._clock() - began >= SNAPSHOT_SLICE:
                    await asyncio.sleep(0)
                    urgent = whole or journal.wants_snapshot
                    if self._journal is not journal or not (self._inbox.empty or urgent):
                        return None
                    began = self._clock()
        return "".join(written).encode()

    async def _write(self, journal: Journal, write: Callable[[Journal], None]) -> None:
        try:
            if journal.remote:
                await asyncio.to_thread(write, journal)
            else:
                write(journal)
        except JournalLostError as error:
            self._leave(error)
        except JournalError as error:
            self._give_up_journal(error)
        except CodecError as error:
            self._give_up_journal(journal.unwritable(error))

    def _give_up_journal(self, error: JournalError) -> None:
        assert self._journal is not None
        self._journal.discard()
        self._journal = None
        text = f"{error}: the run continues, but ends if this driver does"
        self.warn(Cause(CauseKind.UNWRITTEN, detail=ReportedText(text)))

    def memory_killed(self, kill: agent_pb2.MemoryKill) -> None:
        """The kernel has killed a process that a worker had started: nothing follows from it by itself."""
        worker = self._membership.roster.workers.get(kill.worker_id)
        if worker is not None:
            limit = kill.memory_limit if kill.HasField("memory_limit") else None
            detail = MemoryKill(kill.pid, limit, kill.uncertain)
            self._remark(Line(Cause(CauseKind.CHILD_OUT_OF_MEMORY, worker.name, detail=detail)))

    def _note_sources(self, loaded: events.SourcesLoaded, replayed: bool) -> None:
        files = self._event_history.warnings.sources.differing(loaded)
        worker = self._membership.roster.workers.get(loaded.worker_id)
        if files and worker is not None and not replayed:
            cause = Cause(CauseKind.SOURCE_DIFFERS, worker.name, detail=ReportedText(files))
            self._event_history.warnings.add(cause, self._event_history.now())
            self._remark(Line(cause))

    def _note_script(self, warned: events.ScriptWarned, replayed: bool) -> None:
        worker = self._membership.roster.workers.get(warned.worker_id)
        if worker is None or (cause := self._event_history.script_warnings.cause(warned, worker.name)) is None:
            return
        if not replayed:
            self._event_history.warnings.add(cause, self._event_history.now())
            self._remark(Line(cause))

    def output_unwritten(self, host: str, lost: agent_pb2.OutputUnwritten) -> None:
        """A file of a worker's output cannot be written: the output is shown all the same."""
        self.warn(Cause(CauseKind.OUTPUT_UNWRITTEN, host=host, detail=ReportedText(f"{lost.file}: {lost.reason}")))

    def warn(self, cause: Cause, said: bool = False) -> None:
        """Something impairs the run or its records, and nothing follows from it by itself.

        Args:
            cause: what it is.
            said: whether it has been printed.
        """
        if self._event_history.warnings.add(cause, self._event_history.now()):
            self._remark(Line(cause), said)

    def _warn_of_checkpoints(self, event: events.CheckpointsHeld) -> None:
        if event.trouble:
            self.warn(Cause(CauseKind.CHECKPOINT_UNCOPIED, host=event.host, detail=ReportedText(event.trouble)))
        if event.disk is not None and event.disk.trouble:
            self.warn(Cause(CauseKind.CHECKPOINT_UNWRITTEN, host=event.host, detail=ReportedText(event.disk.trouble)))
        if missed := self._membership.memory.missed:
            text = f"rank {missed.rank} has saved step {missed.later}, but not step {missed.step} as others have"
            self.warn(Cause(CauseKind.SAVE_MISSED, host=missed.host, detail=ReportedText(text)))

    def _remark(self, line: Line, said: bool = False) -> None:
        if not said:
            _log.warning("%s", line.text)
        self.publish(self._event_history.take(events.Ticked(), (), None, [line]))

    def publish(self, new_events: list[status_pb2.Event]) -> None:
        """Pass events on to all who watch."""
        if new_events:
            self._status.announce()
            self._recorder.events(new_events)

    async def _next_events(self) -> list[Inbound]:
        """The next event, with as many of those behind it as the journal takes at once; Ticked when a deadline comes
        first; nothing when a snapshot is due.
        """
        deadline = self._membership.next_deadline
        snapshot_due = self._snapshot_due if self._journal is not None and self._inbox.empty else None
        wakes = [at for at in (deadline, snapshot_due) if at is not None]
        try:
            async with asyncio.timeout(max(0.0, min(wakes) - self._clock()) if wakes else None):
                event = await self._inbox.get()
        except TimeoutError:
            return [events.Ticked()] if min(wakes) == deadline else []
        assert event is not None, "the inbox is never closed"
        at_once = self._journal.records_at_once if self._journal is not None else 1
        return [event, *self._inbox.take(at_once - 1)]

    def _perform(self, action: actions.Action, messages: Iterable[tuple[str, agent_pb2.ConnectResponse]]) -> None:
        match action:
            case actions.StartAgent(host, agent_id):
                self._registry.expect(host, agent_id)
                self._agents.start(host, agent_id)
            case actions.StopAgent(_, agent_id):
                self._shutdown.stop_agent(agent_id)
            case actions.AbandonAgent(host, agent_id):
                self._shutdown.forget_agent(host, agent_id)
        for host, message in messages:
            self._registry.send(host, message)
