"""Why a round cannot form. Part of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edriver.common.ids import NO_VERSION, Version
from edriver.driver.core.cause import Cause, CauseKind, Duration, Shortage, TimedOut
from edriver.driver.core.failures.consistency import state_lost
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.roster import Roster
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.rounds.selection import Prospect
from edriver.driver.core.settings import Settings
from edriver.driver.core.staffing import Staffing


class Obstacle(NamedTuple):
    """Why no round can form now.

    Attributes:
        cause: what is waited for; of a final one, why the run is over.
        final: whether no event can change that.
    """

    cause: Cause
    final: bool = False


class Waiting(NamedTuple):
    """What decides whether the next round can form.

    Attributes:
        settings: the operator's limits.
        roster: who is there.
        staffing: which workers are starting.
        suspects: who may yet come to life.
        last: the last round; None before the first.
        best: the highest version that was ever offered.
        checkpoints: whether the state is written to disk, so that new workers may find a checkpoint.
        awaits_checkpoint: whether one may be written now, by a worker that is ending.
        started: when the run began.
        now: the time.
        newest: since when the latest of the members has been waiting.
    """

    settings: Settings
    roster: Roster
    staffing: Staffing
    suspects: Suspects
    last: Round | None
    best: Version
    checkpoints: bool
    awaits_checkpoint: bool
    started: float
    now: float
    newest: Callable[[], float]

    def waiting_reason(self, chosen: Prospect) -> Obstacle | None:
        """Why a round of these cannot form; None: it can."""
        settings = self.settings
        start_over = self.last is None and self.now >= self.started + settings.start_timeout
        needed = min(settings.np, self.staffing.sizes.most) if self.last is None and not start_over else settings.min_np
        found = self._at_the_start(start_over) if self.last is None else self._after(self.last)
        if found:
            return found
        if chosen.size and chosen.version == NO_VERSION != self.best:
            held = not self.roster.ranked <= self.roster.waiting.keys()
            if held or self.awaits_checkpoint:
                return Obstacle(Cause(CauseKind.HOLDER_AWAITED, detail=self.best))
            if not chosen.checkpoint:
                if self.checkpoints and self.staffing.booting():  # where that runs there may be one
                    return Obstacle(Cause(CauseKind.BOOT_AWAITED))
                return Obstacle(Cause(CauseKind.STATE_LOST), final=True)
        if chosen.members < needed:
            troubles = self.staffing.troubles(self.now)
            shortage = Shortage(chosen.members, needed, state_keeper=chosen.keeper, troubles=troubles)
            return Obstacle(Cause(CauseKind.WORKERS_AWAITED, detail=shortage))
        if (
            not settings.mode.members_survive
        ):  # all of the round's slots come back at once, and any later one is a restart
            expected = chosen.members < self.staffing.sizes.most and self.staffing.replacement_expected(self.now)
            return Obstacle(Cause(CauseKind.BOOT_AWAITED)) if expected else None
        may_grow = chosen.survivors < needed and chosen.members < self.staffing.sizes.most and self.staffing.booting()
        if may_grow and self.now < self.newest() + settings.join_window:
            return Obstacle(Cause(CauseKind.BOOT_AWAITED))
        return None

    def _at_the_start(self, start_over: bool) -> Obstacle | None:
        slots, settings = self.roster.usable_slots, self.settings
        if start_over and slots < settings.min_np:
            troubles = self.staffing.troubles(self.now, late=True)
            shortage = Shortage(slots, settings.min_np, settings.start_timeout, troubles=troubles)
            return Obstacle(Cause(CauseKind.TOO_FEW_SLOTS, detail=shortage), final=True)
        if self.staffing.no_slot_works(self.now):
            return Obstacle(Cause(CauseKind.START_FAILED), final=True)
        if start_over and self.staffing.booting() and all(worker.offer is None for worker in self.roster.live()):
            if not settings.mode.members_survive:  # no script of that mode calls edriver.run: its imports take long
                return Obstacle(Cause(CauseKind.BOOT_AWAITED))
            return Obstacle(Cause(CauseKind.RUN_CALL_AWAITED, detail=Duration(settings.start_timeout)))
        return None

    def _after(self, last: Round) -> Obstacle | None:
        survive = self.settings.mode.members_survive
        roster = self.roster
        survives = any(last.had(w) for w in roster.ranked)
        if survive and not survives and not self.checkpoints:
            return Obstacle(state_lost(last), final=True)
        if self.suspects:  # the next round's members are known when these have shown themselves, or have ended
            return Obstacle(Cause(CauseKind.SUSPECTS_AWAITED))
        if survive and survives and not any(last.had(w) for w in roster.waiting):
            return Obstacle(Cause(CauseKind.SURVIVORS_AWAITED))
        return self._unproven_pause(last)

    def _unproven_pause(self, last: Round) -> Obstacle | None:
        if last.resume_at is None or last.unproven_since is None:
            return None
        limit = self.settings.elastic_timeout
        if self.now >= last.unproven_since + limit:
            return Obstacle(Cause(CauseKind.UNPROVEN_CONNECTIONS, detail=TimedOut(limit, last.abort_cause)), final=True)
        return Obstacle(Cause(CauseKind.PAUSE_AWAITED)) if self.now < last.resume_at else None
