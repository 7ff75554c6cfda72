"""Which slots and hosts are not used for a while because their workers failed. Part of the core.

A slot rests after each failure of its own; a host is quarantined when the fault seems to be the whole host's. Both
pauses grow with every failure (Settings.cooldown, Settings.host_cooldown) and end on their own.

A kill from outside of a worker that had a place in a round tells less: an operator, a test or another program on the
machine may do that, and the slot is as good as before. It rests as after a first failure, and a host that loses many
workers in this way is quarantined as for the first time, however often.

A kill from outside is a SIGKILL or SIGTERM that edriver has not sent and that the kernel has not sent because memory
ran out. A worker that is killed before it has had a place in a round counts as failed all the same: something there
may kill whatever starts.

Workers that one cause (a file server, a switch) took down together should not start together, so half of each pause is
drawn at random: "equal jitter" of the AWS Architecture Blog's "Exponential Backoff And Jitter"
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). With full jitter the pause of a slot that
fails at once could be next to nothing.

A host is quarantined if within Settings.failure_window (600 s) its workers have failed as often as it has slots (and
four times at least), in half of the slots at least, and per slot more than three times as often as those of the other
hosts. Each part answers a wrong accusation:

* as often as it has slots, and four times: two failures in two slots prove nothing; a host of eight slots is not given
  up for four;
* in half of the slots: one broken GPU is that slot's affair, which rests on its own;
* three times as often as elsewhere: a bug in the script, or random kills of workers, hit all hosts alike, and the host
  is not what is wrong. Without another host there is nothing to compare with, and nowhere to go.

With a random worker of four on two hosts killed every 30 s, chance quarantines a host about twice an hour, for a
quarter of a minute each; every 5 s, about once a day.

After its cooldown a host is used again, on probation: the failures of the window still count, so that another one sends
it back for twice as long. A host that discovery drops and later names again is a new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final

from edriver.driver.core.roster import Roster
from edriver.model.cause import Cause, CauseKind, Count, HostQuarantine, SlotQuarantine, SlotTarget
from edriver.model.records import HostRecord, Slot, Worker
from edriver.model.settings import Settings

MIN_FAILURES: Final = 4
"""Failures below which no host is quarantined: fewer may be chance."""

MIN_FAILURE_RATIO: Final = 3
"""The factor by which a host's slots must have failed more often than those of other hosts."""

MIN_ANNOUNCED_COOLDOWN: Final = 1.0
"""Cooldowns shorter than this, in seconds, are not announced."""

_REST: Final = -1
_START: Final = -2
"""In the place of a slot's number: the quarantine of its host, and the pause of its agent."""


def _has_failed(record: HostRecord) -> bool:
    return any(place.failures for place in record.places.values())


def _cooling(record: HostRecord, now: float) -> bool:
    return any(place.free_at > now for place in record.places.values())


class Quarantine:
    """Decides which slots and hosts must not be used now, and what observers see of that.

    Args:
        settings: the operator's limits.
        roster: the hosts, and the workers on them.
        draw: returns a random number from 0 up to 1, for the jitter.
    """

    def __init__(self, settings: Settings, roster: Roster, draw: Callable[[], float]) -> None:
        self._settings = settings
        self._roster = roster
        self._draw = draw
        self._news: list[Cause] = []
        self._announced: dict[tuple[str, int | None], float] = {}  # what was announced as quarantined, and until when
        self._needed: set[str] = set()  # hosts that are used in spite of it
        self._quarantined: set[str] = set()  # hosts that are, or have been until lately
        self._cooling: set[str] = set()  # hosts with slots of which that holds
        self._struck: set[str] = set()  # hosts whose workers have failed, or were killed, within the window
        self._tried: set[str] = set()  # hosts with slots that have failed
        self._ends: list[tuple[float, str, int]] = []  # a heap: when pauses end, of hosts and slots

    def worker_failed(self, worker: Worker, now: float) -> None:
        """Record a failure whose cause lies in the worker, its slot or its host."""
        record = self._roster.hosts[worker.host]
        place = record.places.setdefault(worker.slot, Slot())
        window = self._settings.failure_window
        pause = place.fail(now, window, self._slot_cooldown)
        rest = SlotQuarantine(worker.slot, pause, place.failures)
        self._announce(
            worker.slot, place.free_at, pause, Cause(CauseKind.SLOT_QUARANTINED, host=record.name, detail=rest)
        )
        self._cool(record, worker.slot)
        self._tried.add(record.name)
        record.failed = (*record.failed, (now, worker.slot))
        self._struck.add(record.name)
        if record.rest.free_at <= now and (blame := self._blame(record, now)):
            pause = record.rest.fail(now, window, self._host_cooldown)
            self.exclude(record, record.rest.free_at)
            cause = Cause(CauseKind.HOST_QUARANTINED, host=record.name, detail=replace(blame, seconds=pause))
            self._announce(None, record.rest.free_at, pause, cause)

    def worker_killed(self, worker: Worker, now: float) -> None:
        """Record that a worker was killed: neither by the kernel, because memory ran out, nor by this run.

        One that never had a place in a round counts as failed: what kills each worker that starts there is a fault.
        """
        if worker.rank is None:
            self.worker_failed(worker, now)
            return
        record = self._roster.hosts[worker.host]
        place = record.places.setdefault(worker.slot, Slot())
        pause = self._slot_cooldown(1)
        place.free_at = max(place.free_at, now + pause)
        rest = SlotQuarantine(worker.slot, pause, 1)
        self._announce(
            worker.slot, place.free_at, pause, Cause(CauseKind.SLOT_QUARANTINED, host=record.name, detail=rest)
        )
        self._cool(record, worker.slot)
        record.killed = (*record.killed, (now, worker.slot))
        self._struck.add(record.name)
        if record.rest.free_at <= now and (blame := self._blame(record, now, kills=True)):
            pause = self._host_cooldown(1)
            self.exclude(record, now + pause)
            cause = Cause(CauseKind.HOST_QUARANTINED, host=record.name, detail=replace(blame, seconds=pause))
            self._announce(None, record.rest.free_at, pause, cause)

    def agent_failed(self, record: HostRecord, now: float) -> None:
        """Record that a host's agent could not be started, or was lost."""
        record.start.fail(now, self._settings.failure_window, self._slot_cooldown)
        # An agent that could not be started will hardly start a moment later.
        record.start.free_at = max(record.start.free_at, now + 1.0)
        heappush(self._ends, (record.start.free_at, record.name, _START))

    def _cool(self, record: HostRecord, slot: int) -> None:
        self._cooling.add(record.name)
        heappush(self._ends, (record.places[slot].free_at, record.name, slot))

    def exclude(self, record: HostRecord, until: float) -> None:
        """Have no worker started on a host until then."""
        record.rest.free_at = until
        self._quarantined.add(record.name)
        heappush(self._ends, (record.rest.free_at, record.name, _REST))

    def any_tried(self) -> bool:
        """Whether a slot of a host that discovery names has failed."""
        hosts = self._roster.hosts
        return any(name in hosts and hosts[name].present and _has_failed(hosts[name]) for name in self._tried)

    def cooling_hosts(self, now: float) -> set[str]:
        """The hosts that have slots which are not to be used now because of a failure."""
        hosts = self._roster.hosts
        self._cooling = {name for name in self._cooling if name in hosts and _cooling(hosts[name], now)}
        return self._cooling

    def excluded_hosts(self, now: float) -> set[str]:
        """The hosts on which no worker is to be started now."""
        return {r.name for r in self._resting(now) if r.name not in self._needed}

    def review(self, now: float) -> Iterator[Cause]:
        """Waive the quarantine of hosts that the run needs; yields what has changed since the last call.

        Quarantine chooses between hosts, it does not stop the run: as long as the others cannot make up --min-np, the
        host whose cooldown ends first is used all the same, from then on. A slot's own cooldown is not waived: nothing
        but that pause lies between a script that cannot start and a new process every few milliseconds.
        """
        if not (self._announced or self._quarantined or self._needed):  # as after most events
            return
        yield from self._news
        self._news.clear()
        for (host, slot), end in list(self._announced.items()):
            record = self._roster.hosts.get(host)
            if end <= now or record is None:
                del self._announced[host, slot]
                if record and record.wanted and record.rest.free_at <= now:
                    yield Cause(CauseKind.COOLDOWN_OVER, host=host, detail=SlotTarget(slot))
        resting = sorted(self._resting(now), key=lambda record: record.rest.free_at)
        self._needed &= {record.name for record in resting}
        excluded = self.excluded_hosts(now)
        if not excluded:
            return
        roster = self._roster
        room = sum(self._staying(name) for name in excluded)  # workers that train there continue
        room += roster.connected_slots
        for name in excluded | self.cooling_hosts(now):
            if (record := roster.hosts[name]).wanted and record.connected:
                room -= roster.capacity(record)
                room += 0 if name in excluded else roster.slots_in_replicas(record, len(record.ready_slots(now)))
        for record in resting:
            if room >= self._settings.min_np:
                return
            more = roster.slots_in_replicas(record, len(record.ready_slots(now))) - self._staying(record.name)
            if record.name in excluded and record.connected and more > 0:
                room += more
                self._needed.add(record.name)
                if (record.name, None) in self._announced:
                    least = Count(self._settings.min_np)
                    yield Cause(CauseKind.QUARANTINE_WAIVED, host=record.name, detail=least)

    def _staying(self, host: str) -> int:
        """The number of a host's workers that have a slot there."""
        return sum(worker.worker_id in self._roster.placed for worker in self._roster.on(host))

    def next_deadline(self, now: float) -> float:
        """When the next host or slot may be used again; infinite: none is quarantined."""
        ends = self._ends
        while ends and (ends[0][0] <= now or not self._ends_then(*ends[0])):
            heappop(ends)
        return ends[0][0] if ends else math.inf

    def _ends_then(self, end: float, host: str, what: int) -> bool:
        record = self._roster.hosts.get(host)
        if record is None:
            return False
        if what == _REST:
            return record.rest.free_at == end
        if what == _START:
            return record.agent_id is None and record.start.free_at == end
        return what in record.places and record.places[what].free_at == end

    def _blame(self, record: HostRecord, now: float, *, kills: bool = False) -> HostQuarantine | None:
        """Why a host is considered the cause of its slots' failures; None: it is not.

        Args:
            record: the host.
            now: the time.
            kills: whether kills from outside count, there and elsewhere.
        """
        window = self._settings.failure_window

        def struck_in(each: HostRecord) -> list[int]:
            return [slot for _, slot in (*each.failed, *(each.killed if kills else ()))]

        record.forget_failures_before(now - window)
        failures, slots, struck = len(struck_in(record)), record.open_count, len(set(struck_in(record)))
        slots_elsewhere = self._roster.open_slots - (slots if record.wanted else 0)
        if failures < max(MIN_FAILURES, slots) or 2 * struck < slots or not slots_elsewhere:
            return None
        elsewhere = 0
        for name in list(self._struck):
            each = self._roster.hosts.get(name)
            if each is not None:
                each.forget_failures_before(now - window)
            if each is None or not (each.failed or each.killed):
                self._struck.discard(name)
            elif each.wanted and each is not record:
                elsewhere += len(struck_in(each))
        if failures * slots_elsewhere <= MIN_FAILURE_RATIO * elsewhere * slots:
            return None
        return HostQuarantine(0.0, failures, slots, window, elsewhere, slots_elsewhere)

    def _resting(self, now: float) -> list[HostRecord]:
        if not self._quarantined:
            return []
        hosts = self._roster.hosts
        self._quarantined = {name for name in self._quarantined if name in hosts and hosts[name].rest.free_at > now}
        return [record for record in self._roster.in_order(self._quarantined) if record.wanted]

    def _slot_cooldown(self, failures: int) -> float:
        return self._settings.cooldown(failures, self._draw())

    def _host_cooldown(self, quarantines: int) -> float:
        return self._settings.host_cooldown(quarantines, self._draw())

    def _announce(self, slot: int | None, end: float, pause: float, cause: Cause) -> None:
        if pause >= MIN_ANNOUNCED_COOLDOWN:
            assert cause.host is not None
            self._announced[cause.host, slot] = end
            self._news.append(cause)
