"""Why the next round cannot form. Part of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from edriver.driver.core.failures.consistency import positions_lost, state_lost
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.placement import Placement
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Round, RunCall
from edriver.driver.core.selection import Prospect
from edriver.model.cause import Cause, CauseKind, Duration, Shortage, TimedOut
from edriver.model.ids import NO_VERSION
from edriver.model.mode import OnLoss
from edriver.model.settings import Settings


class Obstacle(NamedTuple):
    """Why no round can form now.

    Attributes:
        cause: what is waited for; of a final one, why the run is over.
        final: whether no event can change that.
    """

    cause: Cause
    final: bool = False


@dataclass(slots=True, eq=False)
class Obstacles:
    """Finds what keeps the next round from forming. It changes nothing.

    Attributes:
        settings: the operator's limits.
        roster: the hosts and workers.
        placement: which workers are starting.
        suspects: who may yet come to life.
        started: when the run began.
    """

    settings: Settings
    roster: Roster
    placement: Placement
    suspects: Suspects
    started: float

    def find(
        self, chosen: Prospect, last: Round | None, call: RunCall, now: float, newest: Callable[[], float]
    ) -> Obstacle | None:
        """Why a round of these cannot form; None: it can.

        Args:
            chosen: the members that it would have.
            last: the last round; None before the first.
            call: the script's `run` call.
            now: the time.
            newest: tells since when the latest of the members has been waiting.
        """
        settings = self.settings
        found = self._at_the_start(now) if last is None else self._after(last, call, now)
        if found:
            return found
        if (chosen.size or chosen.lost) and chosen.version == NO_VERSION != call.best:
            held = not self.roster.ranked <= self.roster.waiting.keys()
            if held or (call.checkpoints and self.roster.may_write):
                return Obstacle(Cause(CauseKind.HOLDER_AWAITED, detail=call.best))
            if not chosen.checkpoint:
                if call.checkpoints and self.placement.booting():  # where that runs there may be one
                    return Obstacle(Cause(CauseKind.BOOT_AWAITED))
                return Obstacle(positions_lost(chosen.lost), final=True)
        most = self.placement.sizes.max_workers
        needed = min(settings.np, most) if last is None and not self._start_is_over(now) else settings.min_np
        if settings.on_loss is OnLoss.WAIT and last is not None and last.abort_cause is not None:
            needed = max(needed, min(len(last.plan.seats) - last.state_keepers, most))
        if chosen.members < needed:
            troubles = self.placement.troubles(now)
            shortage = Shortage(chosen.members, needed, state_keeper=chosen.keepers > 0, troubles=troubles)
            return Obstacle(Cause(CauseKind.WORKERS_AWAITED, detail=shortage))
        if not settings.mode.members_survive:
            # All of the round's slots come back at once, and any later one is a restart.
            expected = chosen.members < most and self.placement.replacement_expected(now)
            return Obstacle(Cause(CauseKind.BOOT_AWAITED)) if expected else None
        may_grow = chosen.survivors < needed and chosen.members < most and self.placement.booting()
        if may_grow and now < newest() + settings.join_window:
            return Obstacle(Cause(CauseKind.BOOT_AWAITED))
        return None

    def _start_is_over(self, now: float) -> bool:
        return now >= self.started + self.settings.start_timeout

    def _at_the_start(self, now: float) -> Obstacle | None:
        slots, settings, start_over = self.roster.usable_slots, self.settings, self._start_is_over(now)
        if start_over and slots < settings.min_np:
            troubles = self.placement.troubles(now, late=True)
            shortage = Shortage(slots, settings.min_np, settings.start_timeout, troubles=troubles)
            return Obstacle(Cause(CauseKind.TOO_FEW_SLOTS, detail=shortage), final=True)
        if self.placement.no_slot_works(now):
            return Obstacle(Cause(CauseKind.START_FAILED), final=True)
        if start_over and self.placement.booting() and all(worker.offer is None for worker in self.roster.live()):
            if not settings.mode.members_survive:  # no script of that mode calls edriver.run: its imports take long
                return Obstacle(Cause(CauseKind.BOOT_AWAITED))
            return Obstacle(Cause(CauseKind.RUN_CALL_AWAITED, detail=Duration(settings.start_timeout)))
        return None

    def _after(self, last: Round, call: RunCall, now: float) -> Obstacle | None:
        survive = self.settings.mode.members_survive
        roster = self.roster
        survives = any(last.had(w) for w in roster.ranked)
        if survive and not survives and not call.checkpoints:
            return Obstacle(state_lost(last), final=True)
        if self.suspects:  # the next round's members are known when these have shown themselves, or have ended
            return Obstacle(Cause(CauseKind.SUSPECTS_AWAITED))
        if survive and survives and not any(last.had(w) for w in roster.waiting):
            return Obstacle(Cause(CauseKind.SURVIVORS_AWAITED))
        return self._unproven_pause(last, now)

    def _unproven_pause(self, last: Round, now: float) -> Obstacle | None:
        if last.resume_at is None or last.unproven_since is None:
            return None
        limit = self.settings.elastic_timeout
        if now >= last.unproven_since + limit:
            return Obstacle(Cause(CauseKind.UNPROVEN_CONNECTIONS, detail=TimedOut(limit, last.abort_cause)), final=True)
        return Obstacle(Cause(CauseKind.PAUSE_AWAITED)) if now < last.resume_at else None
