"""Workers that are suspected: silent, stalled, stuck, or out of reach. Part of the core.

A suspicion is not a proof: what is silent may wake up. So a suspected worker breaks its round, for the others cannot
train with it, but it is killed only once another worker has shown that it lives and holds the state. Until then it is
left alone: killing the last one that holds the state would end the run, and nothing worse than that can come of
waiting. It is no longer suspected as soon as it gives a sign of life.

A sign of life is an answer for a worker that was silent, a report of the training thread for one that stood still, a
message of its agent for one that was out of reach. When one of several wakes up, the others are spared for another 10 s
(Settings.wake_window): what has stopped one of them may have stopped them all.

A round whose members are all silent is not aborted, because none of them waits for another. What stops all of them (a
suspended machine, a paused container) stops and wakes them one after the other, so an agent also reports a worker that
has been *quiet*, without an answer, for half of its lease. In elastic mode a round is not aborted for the sake of a
silent worker while all others are quiet or silent, nor in the 10 s after one of them has answered: an abort would sever
the connections of workers that are about to continue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Final

from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Round, RunCall
from edriver.driver.core.shardings import newest_cut
from edriver.model import events
from edriver.model.cause import AgentFault, Cause, CauseKind, CauseList
from edriver.model.events import Loss, loss_of
from edriver.model.ids import NO_ROUND, NO_VERSION
from edriver.model.records import Worker
from edriver.model.settings import Settings

REPORT_DELAY: Final = 1.0
"""Seconds after which it is reported that a worker is left alone: usually the others respond before."""

SIMULTANEITY_WINDOW: Final = 2.0
"""Seconds within which those are suspected that went silent together. An offer that is older than the suspicion counts
after them alone: who made it may be silent as well."""

MAX_NAMED_WORKERS: Final = 4
"""The maximum number of suspected workers named in a reason."""


IDLE_KINDS: Final = frozenset({CauseKind.STALLED, CauseKind.STUCK})
"""Suspicions against a worker that answers while its training thread makes no progress: a message from that thread
clears it. Any message from the worker clears SILENT, a message from its agent UNREACHABLE."""

_ANSWERED_KINDS: Final = frozenset({CauseKind.SILENT})
_REPORTED_KINDS: Final = _ANSWERED_KINDS | IDLE_KINDS
"""Suspicions that a sign of life clears, and a report of the training thread."""

_SLOT_FAULT_KINDS: Final = frozenset({CauseKind.SILENT, CauseKind.STALLED})
"""Suspicions that count against the worker's slot."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a worker is suspected.

    Attributes:
        cause: the cause.
        since: when it was first suspected.
    """

    cause: Cause
    since: float

    @property
    def idle(self) -> bool:
        """Whether the worker answers while its training thread makes no progress."""
        return self.cause.kind in IDLE_KINDS

    @property
    def slot_at_fault(self) -> bool:
        """Whether it counts against the slot."""
        return self.cause.kind in _SLOT_FAULT_KINDS


class Suspects:
    """All workers and agents that are suspected.

    Args:
        settings: the operator's limits.
        roster: the hosts and workers.

    While one switch is down, thousands of workers may be suspected at a time: what can have changed is looked at alone.
    """

    STATE = ("_workers", "_agents", "_quiet", "_spared_until")

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._settings = settings
        self._roster = roster
        self._workers: dict[int, Suspicion] = {}  # those suspected first come first
        self._agents: dict[str, tuple[int, AgentFault]] = {}  # by host: its agent, and why it is suspected
        self._quiet: set[int] = set()  # workers that have not answered for half of their lease
        self._spared_until = float("-inf")
        self._unjudged: set[int] = set()  # those of whom `to_kill` has to find out whether the run depends on them,
        self._unjudged_agents: set[str] = set()  # and `agents_to_give_up` of these; the run depends on the others
        self._judged_of = NO_ROUND  # as a round left them,
        self._departures = -1  # and as the roster counted then
        self._due: list[tuple[float, float, int]] = []  # a heap: when something is due, and since when who is suspected
        self._known: tuple[int, int] | None = None  # the roster's counts when those that are gone were last forgotten

    def derive(self) -> None:
        """After a snapshot: make what follows from the suspicions."""
        for worker_id, suspicion in self._workers.items():
            self._await(worker_id, suspicion.since)
        self._unjudged, self._unjudged_agents = set(self._workers), set(self._agents)

    def __contains__(self, worker_id: int) -> bool:
        return worker_id in self._workers

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __bool__(self) -> bool:
        return bool(self._workers)

    # ---- events ----------------------------------------------------------------------------------------------

    def note(self, event: events.Event, last: Round | None, now: float) -> None:
        """Record a suspicion against a worker, of which the first one is kept, or that its training process has ended:
        then nobody waits for a sign of life any more, only for its command to end.
        """
        match event:
            case events.WorkerEnding(worker_id):
                self._wake(worker_id, _REPORTED_KINDS)
            case events.WorkerQuiet(worker_id):
                if (known := self._roster.workers.get(worker_id)) and known.live:
                    self._quiet.add(worker_id)
            case events.LeaseExpired(worker_id):
                self._suspect(worker_id, event, now)
            case events.WorkerStalled(worker_id, round_id, _, _, stacks):
                if last and last.has(worker_id, round_id):
                    self._roster.note_traceback(self._roster.workers[worker_id], stacks)
                    self._suspect(worker_id, event, now)
            case events.WorkerStuck(worker_id, round_id):
                if last and last.has(worker_id, round_id) and not last.running:
                    self._suspect(worker_id, event, now)
            case events.AgentSilent(host, agent_id, fault):
                self._agents[host] = agent_id, fault
                self._unjudged_agents.add(host)
                for worker in self._roster.on(host):
                    if worker.live:
                        self._add(worker.worker_id, Cause(CauseKind.UNREACHABLE, worker.name, detail=fault), now)

    def _suspect(self, worker_id: int, event: Loss, now: float) -> None:
        worker = self._roster.workers.get(worker_id)
        if worker and worker.live:
            self._add(worker_id, loss_of(event, worker.name), now)

    def _add(self, worker_id: int, cause: Cause, now: float) -> None:
        if worker_id not in self._workers:
            self._workers[worker_id] = Suspicion(cause, now)
            self._unjudged.add(worker_id)
            self._await(worker_id, now)

    def _await(self, worker_id: int, since: float) -> None:
        for seconds in (REPORT_DELAY, SIMULTANEITY_WINDOW, self._settings.elastic_timeout):
            heappush(self._due, (since + seconds, since, worker_id))

    def note_sign_of_life(self, event: events.Event, now: float) -> bool:
        """Clear the workers that an event shows to be alive; returns whether there is any.

        The others are spared for a while then: what has stopped one of them may well have stopped them all, and they
        come to life one after the other.
        """
        if not (self._workers or self._agents or self._quiet):
            return False
        before = len(self._workers)
        woken = False
        match event:
            case events.AgentConnected(host) if host in self._agents:
                del self._agents[host]
                workers = {w.worker_id for w in self._roster.on(host)}
                self._clear(workers, {CauseKind.UNREACHABLE})
                self._unjudged |= workers
            case events.WorkerAnswered(worker_id) | events.BoundaryReached(worker_id):
                woken = self._wake(worker_id, _ANSWERED_KINDS)
            case (
                events.WorkerWaiting(worker_id)
                | events.WorkerDone(worker_id)
                | events.CollectiveRaised(worker_id)
                | events.FirstBoundaryPassed(worker_id)
            ):
                woken = self._wake(worker_id, _REPORTED_KINDS)
        cleared = len(self._workers) < before
        if cleared or (woken and self._workers):
            self._spared_until = now + self._settings.wake_window
        return cleared

    def _wake(self, worker_id: int, kinds: Collection[CauseKind]) -> bool:
        """A worker has shown that it lives; returns whether it was quiet."""
        self._clear({worker_id}, kinds)
        quiet = worker_id in self._quiet
        self._quiet.discard(worker_id)
        return quiet

    def _clear(self, workers: set[int], kinds: Collection[CauseKind]) -> None:
        for worker_id in workers & self._workers.keys():
            if self._workers[worker_id].cause.kind in kinds:
                del self._workers[worker_id]

    def forget_the_gone(self) -> None:
        """Drop those that have been given up, or have ended, since."""
        counts = self._roster.departures, self._roster.revision
        if (self._workers or self._agents or self._quiet) and counts != self._known:
            self._known = counts
            known = self._roster.workers
            self._quiet = {w for w in self._quiet if w in known and known[w].live}
            self._workers = {w: s for w, s in self._workers.items() if w in known and known[w].live}
            hosts = self._roster.hosts
            self._agents = {h: a for h, a in self._agents.items() if h in hosts and hosts[h].agent_id == a[0]}

    # ---- decisions -------------------------------------------------------------------------------------------

    def agents_to_give_up(self, last: Round | None, call: RunCall, now: float) -> Iterator[tuple[str, int, AgentFault]]:
        """Silent agents, none of whose workers the run depends on, each with what is wrong with it.

        Args:
            last: the running round, or the last one; None before the first.
            call: the script's `run` call.
            now: the time.
        """
        if not self._agents:
            return
        again = self._may_differ(last, call, now) or self._roster.departures != self._departures
        judged = [(host, *known) for host, known in self._agents.items() if again or host in self._unjudged_agents]
        shown = self._shown_together(last, call, now)
        self._departures = self._roster.departures
        self._unjudged_agents.clear()
        for host, agent_id, fault in judged:
            living = (worker for worker in self._roster.on(host) if worker.live)
            if all(self._dispensable(worker, last, call, now, shown) for worker in living):
                del self._agents[host]
                for worker in self._roster.on(host):
                    self._workers.pop(worker.worker_id, None)
                yield host, agent_id, fault

    def to_kill(self, last: Round | None, call: RunCall, now: float) -> Iterator[tuple[Worker, Suspicion]]:
        """Suspected workers that the run does not depend on. Those of a silent agent share its fate.

        Arguments as above.
        """
        if not self._workers:
            return
        if self._may_differ(last, call, now):
            judged = list(self._workers)
        elif len(self._unjudged) > 1:
            judged = [worker_id for worker_id in self._workers if worker_id in self._unjudged]
        else:
            judged = list(self._unjudged & self._workers.keys())
        self._judged_of = last.plan.round_id if last else NO_ROUND
        self._unjudged.clear()
        shown = self._shown_together(last, call, now)
        for worker_id in judged:
            worker = self._roster.workers[worker_id]
            if worker.host not in self._agents and self._dispensable(worker, last, call, now, shown):
                yield worker, self._workers.pop(worker_id)

    def _may_differ(self, last: Round | None, call: RunCall, now: float) -> bool:
        """Whether the run may no longer depend on those on which it was found to depend.

        They held its state: another worker must have shown itself, or another round have begun.
        """
        if last is None or last.plan.round_id != self._judged_of:
            return True
        if self._settings.one_replica:
            return self._shown_together(last, call, now) is not None
        return self._shown(last, call, now) is not None

    def _dispensable(
        self, worker: Worker, last: Round | None, call: RunCall, now: float, together: float | None
    ) -> bool:
        """Whether the run can continue without it: it holds no state, or another worker that does has shown itself.

        In replicas, one of its position: the others hold other parts of the state. If all workers are one replica,
        those that have shown themselves must have all parts between them.

        Args:
            worker: who is suspected.
            last: see `agents_to_give_up`.
            call: see there.
            now: see there.
            together: see `_shown_together`.
        """
        if last is None or not last.had(worker.worker_id):
            return True
        suspicion = self._workers.get(worker.worker_id)
        since = suspicion.since if suspicion and not suspicion.idle else float("-inf")
        shown = together if self._settings.one_replica else self._shown(last, call, now, instead_of=worker)
        return shown is not None and (shown >= since or now >= since + SIMULTANEITY_WINDOW)

    def _shown(self, last: Round, call: RunCall, now: float, instead_of: Worker | None = None) -> float | None:
        """When a worker that can take the place of this one last showed that it lives and holds the state.

        None: no worker has, or those that are suspected are spared.
        """
        if now < self._spared_until:
            return None
        for worker_id in reversed(self._roster.waiting):
            worker = self._roster.workers[worker_id]
            if instead_of and (worker is instead_of or worker.position != instead_of.position):
                continue
            if last.had(worker_id) and self._offers_the_state(worker, call):
                return worker.waiting_since
        return None

    def _shown_together(self, last: Round | None, call: RunCall, now: float) -> float | None:
        """If all workers are one replica: since when those have been waiting that live and have all of the state.

        None: they do not have it, or those that are suspected are spared.
        """
        if last is None or not self._settings.one_replica or now < self._spared_until:
            return None
        workers = [self._roster.workers[worker_id] for worker_id in self._roster.waiting if last.had(worker_id)]
        shown = [w for w in workers if w.host not in self._agents and self._offers_the_state(w, call)]
        offers = [worker.offer for worker in shown if worker.offer is not None]
        sharded = call.best != NO_VERSION and any(offer.shards for offer in offers)
        if not shown or (sharded and newest_cut(offers).version == NO_VERSION):
            return None
        return min(worker.waiting_since for worker in shown)

    def _offers_the_state(self, worker: Worker, call: RunCall) -> bool:
        """Whether a worker lives and holds the state."""
        if worker.worker_id in self._workers or not worker.waits_in(call.ordinal) or worker.offer is None:
            return False
        return worker.offer.version != NO_VERSION or call.best == NO_VERSION

    def breaking(self, current: Round, now: float) -> tuple[Worker, Cause] | None:
        """For whose sake a round is to be aborted, and why; None: nothing would be gained, or it is over already.

        If all of its members are silent, none of them waits for another, and one message is enough to continue.
        What stops them all stops them one after the other, and wakes them so: one that is quiet is about to be silent,
        and while they wake up those that are still silent have their time. One that stands still has to leave the round
        to show that it does not.
        """
        if not self._workers or current.finished or current.aborted:
            return None
        found = [
            (self._roster.workers[w], self._workers[w]) for w in current.order(current.members & self._workers.keys())
        ]
        idle = any(suspicion.idle for _, suspicion in found)
        if not found or not (idle or self._awake(current, now)):
            return None
        worker, suspicion = found[0]
        return worker, suspicion.cause

    def _awake(self, current: Round, now: float) -> bool:
        """Whether a member waits for those that are suspected."""
        if not self._settings.mode.members_survive:  # none continues after the round in any case
            return any(w not in self._workers for w in current.members)
        return now >= self._spared_until and any(
            w not in self._workers and w not in self._quiet for w in current.members
        )

    def overdue(self, now: float) -> list[tuple[Worker, Suspicion]]:
        """Those that have been left alone for the whole of --elastic-timeout."""
        if not self._workers:
            return []
        limit = now - self._settings.elastic_timeout
        overdue = takewhile(lambda found: found[1].since <= limit, self._workers.items())
        return [(self._roster.workers[worker_id], suspicion) for worker_id, suspicion in overdue]

    def standstill(self, now: float) -> Cause | None:
        """Who is left alone and why; None while that is not known yet."""
        first = next(iter(self._workers.values()), None)
        if first is None or first.since + REPORT_DELAY > now or now < self._spared_until:
            return None
        latest = takewhile(lambda each: each.since + REPORT_DELAY > now, reversed(self._workers.values()))
        count = len(self._workers) - sum(1 for _ in latest)
        named = [each.cause for each in islice(self._workers.values(), min(count, MAX_NAMED_WORKERS))]
        return Cause(CauseKind.LEFT_ALONE, detail=CauseList(tuple(named), count - len(named)))

    def deadlines(self, now: float) -> list[float]:
        """When something may be due here."""
        due = self._due
        while due and (due[0][0] <= now or not self._since(*due[0][1:])):
            heappop(due)
        soonest = [due[0][0]] if due else []
        return [*soonest, self._spared_until] if self._workers else soonest

    def _since(self, since: float, worker_id: int) -> bool:
        return worker_id in self._workers and self._workers[worker_id].since == since
