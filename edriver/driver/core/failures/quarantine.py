"""Which slots and hosts are not used for a while because their workers failed. Part of the core.

A slot rests after each failure of its own; a host is quarantined when the fault seems to be the whole host's. Both
pauses grow with every failure (Settings.cooldown, Settings.host_cooldown) and end by themselves.

A kill from outside of a worker that had a place in a round tells less: an operator, a test or another program on the
machine may do that, and the slot is as good as before. It rests as after a first failure, and a host that loses many
workers in this way is quarantined as for the first time, however often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from edriver.driver.core.cause import Cause, CauseKind, Count, HostQuarantine, SlotQuarantine, SlotTarget
from edriver.driver.core.roster import HostRecord, Roster, Slot, Worker
from edriver.driver.core.settings import Settings

MIN_FAILURES: Final = 4
"""Failures below which no host is quarantined: fewer may be chance (docs/architecture.md)."""

MIN_FAILURE_RATIO: Final = 3
"""How many times more often than those of other hosts the slots of a host must have failed."""

MIN_ANNOUNCED_COOLDOWN: Final = 1.0
"""Cooldowns shorter than this, in seconds, are not announced."""


class Quarantine:
    """Which slots and hosts may not be used now, and what observers see of it.

    Args:
        settings: the operator's limits.
        roster: the hosts, and the workers on them.
        draw: a random number from 0 up to 1 at each call, for the jitter.
    """

    def __init__(self, settings: Settings, roster: Roster, draw: Callable[[], float]) -> None:
        self._settings = settings
        self._roster = roster
        self._draw = draw
        self._news: list[Cause] = []
        self._announced: dict[tuple[str, int | None], float] = {}  # what was announced as quarantined, and until when
        self._needed: set[str] = set()  # hosts that are used in spite of it

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
        record.failed.append((now, worker.slot))
        if record.rest.free_at <= now and (blame := self._blame(record, now)):
            pause = record.rest.fail(now, window, self._host_cooldown)
            cause = Cause(CauseKind.HOST_QUARANTINED, host=record.name, detail=replace(blame, seconds=pause))
            self._announce(None, record.rest.free_at, pause, cause)

    def worker_killed(self, worker: Worker, now: float) -> None:
        """Record that a worker was killed: neither by the kernel, for want of memory, nor by this run.

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
        record.killed.append((now, worker.slot))
        if record.rest.free_at <= now and (blame := self._blame(record, now, kills=True)):
            pause = self._host_cooldown(1)
            record.rest.free_at = now + pause
            cause = Cause(CauseKind.HOST_QUARANTINED, host=record.name, detail=replace(blame, seconds=pause))
            self._announce(None, record.rest.free_at, pause, cause)

    def agent_failed(self, record: HostRecord, now: float) -> None:
        """Record that a host's agent could not be started, or was lost."""
        record.start.fail(now, self._settings.failure_window, self._slot_cooldown)
        # An agent that could not be started will hardly start a moment later.
        record.start.free_at = max(record.start.free_at, now + 1.0)

    def excluded_hosts(self, now: float) -> set[str]:
        """The hosts on which no worker is to be started now."""
        return {r.name for r in self._resting(now) if r.name not in self._needed}

    def review(self, now: float) -> Iterator[Cause]:
        """Waive the quarantine of hosts that the run needs; yields what has changed since the last call.

        Quarantine chooses between hosts, it does not stop the run: as long as the others cannot make up --min-np, the
        host whose cooldown ends first is used all the same, from then on. A slot's own cooldown is not waived: nothing
        but that pause lies between a script that cannot start and a new process every few milliseconds.
        """
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
        staying = Counter(self._roster.workers[w].host for w in self._roster.fitting())
        room = sum(staying[name] for name in excluded)  # workers that train there continue
        room += sum(
            len(record.ready_slots(now))
            for record in self._roster.hosts.values()
            if record.wanted and record.connected and record.name not in excluded
        )
        for record in resting:
            if room >= self._settings.min_np:
                return
            more = len(record.ready_slots(now)) - staying[record.name]
            if record.name in excluded and record.connected and more > 0:
                room += more
                self._needed.add(record.name)
                if (record.name, None) in self._announced:
                    least = Count(self._settings.min_np)
                    yield Cause(CauseKind.QUARANTINE_WAIVED, host=record.name, detail=least)

    def deadlines(self) -> Iterator[float]:
        """When a host or a slot may be used again."""
        for record in self._roster.hosts.values():
            if record.agent_id is None:
                yield record.start.free_at
            if record.rest.free_at:
                yield record.rest.free_at
            for place in record.places.values():
                yield place.free_at

    def _blame(self, record: HostRecord, now: float, *, kills: bool = False) -> HostQuarantine | None:
        """Why a host is considered the cause of its slots' failures; None: it is not.

        Args:
            record: the host.
            now: the time.
            kills: whether kills from outside count, there and elsewhere.
        """
        window = self._settings.failure_window
        others = [r for r in self._roster.hosts.values() if r.wanted and r is not record]
        for each in (record, *others):
            each.forget_failures_before(now - window)

        def struck_in(each: HostRecord) -> list[int]:
            return [slot for _, slot in (*each.failed, *(each.killed if kills else ()))]

        failures, elsewhere = len(struck_in(record)), sum(len(struck_in(each)) for each in others)
        slots, slots_elsewhere = len(record.open_slots), sum(len(r.open_slots) for r in others)
        struck = len(set(struck_in(record)))
        if failures < max(MIN_FAILURES, slots) or 2 * struck < slots or not slots_elsewhere:
            return None
        if failures * slots_elsewhere <= MIN_FAILURE_RATIO * elsewhere * slots:
            return None
        return HostQuarantine(0.0, failures, slots, window, elsewhere, slots_elsewhere)

    def _resting(self, now: float) -> list[HostRecord]:
        return [record for record in self._roster.hosts.values() if record.rest.free_at > now and record.wanted]

    def _slot_cooldown(self, failures: int) -> float:
        return self._settings.cooldown(failures, self._draw())

    def _host_cooldown(self, quarantines: int) -> float:
        return self._settings.host_cooldown(quarantines, self._draw())

    def _announce(self, slot: int | None, end: float, pause: float, cause: Cause) -> None:
        if pause >= MIN_ANNOUNCED_COOLDOWN:
            assert cause.host is not None
            self._announced[cause.host, slot] = end
            self._news.append(cause)
