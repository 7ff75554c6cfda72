"""What a drain would do to the workers that train, and for how long it would stop them. Part of the core.

It decides nothing. It follows from the slots that are free now, and from how long this run's workers take to boot.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edriver.driver.core.membership import Membership
from edriver.driver.core.placement import leave_at
from edriver.model.records import HostRecord


class DrainOutcome(enum.Enum):
    """What a drain comes to."""

    UNUSED = "unused"  # no worker trains there
    MOVES = "moves"  # others take the workers' places at one agreed step
    SHRINKS = "shrinks"  # fewer workers train on: there are too few free slots, or too little time
    PAUSES = "pauses"  # fewer than --min-np are left, and wait for others to boot


@dataclass(frozen=True, slots=True)
class DrainPreview:
    """What a drain would do now.

    Attributes:
        outcome: see DrainOutcome.
        leaving: the number of workers that leave: those of the place, and others of their replicas, which may wait for
            the next one.
        replaced: the number of free slots in which others boot to take their places, and of others that wait for that.
        left: the number of workers that train right after the drained ones have left.
        boot: how long workers of this run take to boot, in seconds; None: none has booted yet.
        pause: for how long training stops, in seconds, beside the change of the members itself; None: not known.
    """

    outcome: DrainOutcome
    leaving: int
    replaced: int
    left: int
    boot: float | None
    pause: float | None


def preview_drain(run: Membership, record: HostRecord, slot: int | None, within: float) -> DrainPreview:
    """What a drain of a host, or of a slot of it, would do now.

    Args:
        run: the run.
        record: the host.
        slot: the slot; None: the whole host.
        within: seconds in which the workers must have left.
    """
    roster, placement, now = run.roster, run.placement, run.now
    placed = [roster.workers[worker_id] for worker_id in roster.placed - roster.booting]
    kept = [w for w in placed if w.host != record.name or slot not in (None, w.slot)]
    train, limit = roster.whole(placed, most=run.sizes.max_workers), run.sizes.max_workers
    staying = roster.whole(kept, most=limit)  # those of a replica that loses a worker leave with it
    members = run.round.members if run.round is not None and run.round.running else roster.placed
    spared = train == staying and any(w.worker_id in members for w in placed if w not in kept)
    leaving = len(placed) - len(kept) if spared else train - staying  # others that wait can take their places
    excluded = placement.quarantine.excluded_hosts(now)
    free = list[tuple[HostRecord, set[int]]]()
    for host in roster.hosts.values():
        if not host.wanted or host.name in excluded or placement.has_fault(host.name):
            continue
        others = [s for s in host.ready_slots(now) if host is not record or (slot is not None and s != slot)]
        taken = {w.slot for w in roster.on(host.name) if w.worker_id not in roster.booting}
        free.append((host, set(others) - taken))
    replaced = leaving if spared else max(0, min(leaving, roster.whole(kept, free, limit) - staying))
    boot = max(placement.boots, default=None)
    until = leave_at(now, within)
    time = 0.0 if until is None else until - now
    in_time = replaced if time > 0 and (boot is None or boot <= time) else 0
    if spared:
        return DrainPreview(DrainOutcome.MOVES, leaving, replaced, staying, boot, 0.0)
    left = staying + in_time
    if not leaving:
        return DrainPreview(DrainOutcome.UNUSED, 0, 0, staying, boot, 0.0)
    if in_time == leaving:
        return DrainPreview(DrainOutcome.MOVES, leaving, replaced, left, boot, 0.0)
    if left >= run.settings.min_np:
        return DrainPreview(DrainOutcome.SHRINKS, leaving, replaced, left, boot, 0.0)
    pause = None if boot is None else max(0.0, boot - time)
    return DrainPreview(DrainOutcome.PAUSES, leaving, replaced, left, boot, pause)
