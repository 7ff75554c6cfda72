"""Wrong variants of the core and of the worker's side, each of which the simulation must catch.

A mutant is a patch of one rule. If the simulation stays green with one in place, it does not test that rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from edriver.driver.core import membership, placement, round_control, selection
from edriver.driver.core.failures import consistency
from edriver.driver.core.failures.budgets import Budget
from edriver.driver.core.failures.consistency import ErrorWatch
from edriver.driver.core.failures.long_work import Judgement, LongWork, StallVerdict
from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.quarantine import Quarantine
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.failures.uneven_steps import UnevenWatch
from edriver.driver.core.membership import Membership
from edriver.driver.core.obstacles import Obstacle, Obstacles
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Interrupt, Round, RunCall
from edriver.driver.core.round_control import RoundControl
from edriver.driver.core.selection import Selection
from edriver.model import events
from edriver.model.actions import Action, Failure
from edriver.model.cause import Cause, CauseKind
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate, RoundPlan
from edriver.model.records import Worker, WorkerState, WorkerStep
from edriver.model.script_error import ScriptError
from edriver.model.settings import Settings
from edriver.v1 import notification_pb2 as pb
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, Stage
from edriver.worker.sampler.cursor import Cursor
from tests.sim.trainee import Trainee

Patch = Callable[[pytest.MonkeyPatch], None]


def stop_at_the_highest_report(patch: pytest.MonkeyPatch) -> None:
    """B = max(p): a member may have passed it already."""
    patch.setattr(Interrupt, "agree", lambda self: max(self.reports.values()))


def stop_at_the_lowest_report(patch: pytest.MonkeyPatch) -> None:
    """B = min(p) + 1."""
    patch.setattr(Interrupt, "agree", lambda self: min(self.reports.values()) + 1)


def members_do_not_wait_for_the_verdict(patch: pytest.MonkeyPatch) -> None:
    """A member that has reported trains on past its next boundary."""
    original = Participant.verdict

    def verdict(self: Participant) -> BoundaryVerdict:
        if self._stop_at is not None and self.boundaries > self._stop_at:
            return BoundaryVerdict.STOP
        found = original(self)
        return BoundaryVerdict.PASS if found is BoundaryVerdict.WAIT else found

    patch.setattr(Participant, "verdict", verdict)


def stop_overrides_abort(patch: pytest.MonkeyPatch) -> None:
    """A member that waits for a verdict, or for boundary B, ignores the abort."""
    original = Participant.verdict

    def verdict(self: Participant) -> BoundaryVerdict:
        if self._reported is not None and self._stop_at is None and self.boundaries > self._reported:
            return BoundaryVerdict.WAIT
        return original(self)

    patch.setattr(Participant, "verdict", verdict)


def done_is_no_report(patch: pytest.MonkeyPatch) -> None:
    """The notice waits for an answer of members whose function has returned."""
    original = Participant._begin_interrupt

    def take(self: Participant, notice: pb.HostsUpdated) -> pb.Report | None:
        return None if self.stage is Stage.DONE else original(self, notice)

    patch.setattr(Participant, "_begin_interrupt", take)
    real = RoundControl.run

    def run(self: RoundControl, current: Round, now: float) -> list[Action]:
        done, current.done = current.done, dict(current.done) if len(current.done) == len(current.members) else {}
        actions = real(self, current, now)
        current.done = done
        return actions

    patch.setattr(RoundControl, "run", run)
    note = Round.note

    def forgetful(self: Round, event: Any, now: float) -> None:
        note(self, event, now)
        if isinstance(event, events.WorkerDone) and self.interrupt:
            self.interrupt.reports.pop(event.worker_id, None)

    patch.setattr(Round, "note", forgetful)


def rank_zero_by_age_alone(patch: pytest.MonkeyPatch) -> None:
    """Rank 0 is the oldest worker, whatever it holds."""
    original = selection.plan_round

    def plan(round_id: RoundId, ordinal: int, candidates: list[Candidate], first: bool, **further: Any) -> RoundPlan:
        oldest = min(candidates, key=lambda c: c.worker_id)
        swapped = [c._replace(version=further["version"] if c is oldest else c.version) for c in candidates]
        return original(round_id, ordinal, swapped, first, **further)

    patch.setattr(round_control, "plan_round", plan)


def versions_by_count_alone(patch: pytest.MonkeyPatch) -> None:
    """Boundaries of different rounds are compared as if they counted the same steps."""
    patch.setattr(
        selection,
        "newest_version",
        lambda cs, _size: (max((c.version for c in cs), key=lambda v: v.boundaries, default=NO_VERSION), ()),
    )


def only_newcomers_receive(patch: pytest.MonkeyPatch) -> None:
    """A survivor that is one commit behind is not synced."""
    original = selection.plan_round

    def plan(round_id: RoundId, ordinal: int, candidates: list[Candidate], first: bool, **further: Any) -> RoundPlan:
        made = original(round_id, ordinal, candidates, first, **further)
        offers = {c.worker_id: c.version for c in candidates}
        fresh = tuple(s.rank for s in made.seats if s.rank and offers[s.worker_id] == NO_VERSION)
        return replace(made, receivers=fresh)

    patch.setattr(round_control, "plan_round", plan)


def later_calls_start_unsynced(patch: pytest.MonkeyPatch) -> None:
    """The first round of a script's second `run` takes equal versions for equal states."""
    original = selection.plan_round

    def plan(round_id: RoundId, ordinal: int, candidates: list[Candidate], first: bool, **further: Any) -> RoundPlan:
        return original(round_id, ordinal, candidates, first and ordinal == 1, **further)

    patch.setattr(round_control, "plan_round", plan)


def torn_state_is_offered(patch: pytest.MonkeyPatch) -> None:
    """After an abort a worker offers the version that it had reached, not the one that it went back to."""
    original = Participant.wait

    def wait(self: Participant, offer: Version, *rest: Any) -> pb.Report:
        return original(self, max(offer, self.live) if self.abort_cause else offer, *rest)

    patch.setattr(Participant, "wait", wait)


def torn_state_counts_as_clean(patch: pytest.MonkeyPatch) -> None:
    """A worker whose optimizer has stepped since the last boundary offers that boundary."""
    patch.setattr(Trainee, "clean", property(lambda self: True))
    patch.setattr(Trainee, "go_back", lambda self, to_boundary: iter(()))  # for it would have no copy to go back to


def boundaries_count_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A worker that is cut off before a round's sync offers that round's version."""
    patch.setattr(Participant, "live", property(lambda self: Version(self.round_id, self.boundaries)))


def rounds_form_before_all_have_stopped(patch: pytest.MonkeyPatch) -> None:
    """The next round is assigned to those that have stopped, while others still train towards B."""
    original = RoundControl.forming

    def forming(self: RoundControl, now: float) -> bool:
        current = self.current
        if current and current.stopping and len(current.members) < len(current.plan.workers):
            return True
        return original(self, now)

    patch.setattr(RoundControl, "forming", forming)


def scratch_is_as_good_as_state(patch: pytest.MonkeyPatch) -> None:
    """A round forms of newcomers alone when every holder is gone."""
    original = RoundControl.form

    def form(self: RoundControl, now: float) -> list[Action]:
        current = self.current
        if current:
            left = [w for w in current.plan.workers if w in self.roster.workers and self.roster.workers[w].live]
            if not left:
                self.current, self.call.best = None, NO_VERSION
        return original(self, now)

    patch.setattr(RoundControl, "form", form)


def no_state_keeper_stays(patch: pytest.MonkeyPatch) -> None:
    """When every holder's host is gone, the last holder leaves with the rest."""
    original = selection.select

    def select(*args: Any) -> Selection:
        return replace(original(*args), state_keepers=())

    patch.setattr(round_control, "select", select)


def finish_when_one_is_done(patch: pytest.MonkeyPatch) -> None:
    """The first member to return ends the round."""
    original = RoundControl.run

    def run(self: RoundControl, current: Round, now: float) -> list[Action]:
        if not current.done:
            return original(self, current, now)
        for worker_id in current.members - current.done.keys():  # the table of transitions would notice it
            self.roster.move(self.roster.workers[worker_id], WorkerStep.RETURN)
        return self._finish(current, now)

    patch.setattr(RoundControl, "run", run)


def survivors_are_not_notified(patch: pytest.MonkeyPatch) -> None:
    """A round with a dead member is left to hang."""

    def abort(self: RoundControl, cause: Cause, now: float) -> list[Action]:
        if self.current and not self.current.aborted and not self.current.finished:
            self.current.abort(cause, now + self.settings.rejoin_timeout)
            self.budgets.failures.spend(now, cause)
        return []

    patch.setattr(RoundControl, "abort", abort)


def cursor_forgets_the_last_row(patch: pytest.MonkeyPatch) -> None:
    """An offset counts this rank's samples once, not once per rank."""
    patch.setattr(Cursor, "offset", property(lambda self: min(self.length, self.base + self.recorded)))


def bugs_are_retried_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The script's error is retried as long as a worker is left."""
    patch.setattr(ErrorWatch, "repeated_failure", lambda self, *judged: None)


def bugs_that_take_turns_are_retried_for_ever(patch: pytest.MonkeyPatch) -> None:
    """An error is forgotten once a round has ended of another one."""
    original = ErrorWatch._note_errors

    def note(self: ErrorWatch, ended: Round) -> None:
        original(self, ended)
        if ended.errors:
            latest = ended.errors.values()
            self._recent_errors = {error: rounds for error, rounds in self._recent_errors.items() if error in latest}

    patch.setattr(ErrorWatch, "_note_errors", note)


def every_error_is_the_same(patch: pytest.MonkeyPatch) -> None:
    """Two workers that raise at different places are taken for one bug."""
    patch.setattr(membership, "script_error", lambda traceback: ScriptError("ValueError", "", 0, ""))


def one_accident_is_a_bug(patch: pytest.MonkeyPatch) -> None:
    """The first exception of one worker ends the run."""
    patch.setattr(consistency, "MAX_ERROR_ROUNDS", 1)
    patch.setattr(consistency, "MAX_LOCAL_ERROR_ROUNDS", 1)


def quarantine_stops_the_run(patch: pytest.MonkeyPatch) -> None:
    """Hosts are quarantined even if the others have fewer than --min-np slots."""
    patch.setattr(Quarantine, "excluded_hosts", lambda self, now: {r.name for r in self._resting(now)})


def quarantine_is_for_good(patch: pytest.MonkeyPatch) -> None:
    """A quarantined host is never used again."""
    patch.setattr(Settings, "host_cooldown", lambda self, quarantines, draw: 1e9)


def a_kill_is_a_hosts_fault_for_good(patch: pytest.MonkeyPatch) -> None:
    """A host one of whose workers was killed from outside is never used again."""

    def worker_killed(self: Quarantine, worker: Worker, now: float) -> None:
        self.exclude(self._roster.hosts[worker.host], now + 1e9)

    patch.setattr(Quarantine, "worker_killed", worker_killed)


def uneven_steps_are_waited_out(patch: pytest.MonkeyPatch) -> None:
    """A member waits for one that is done, for ever."""
    patch.setattr(UnevenWatch, "check", lambda self, current, now: None)


def members_that_stop_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A round is cut as soon as one of its members has stopped at the agreed boundary."""
    patch.setattr(Round, "cannot_stop", property(lambda self: self.stopping and self.members != set(self.plan.workers)))


def uneven_steps_are_tried_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A round of uneven steps is followed by another one, each time."""
    patch.setattr(UnevenWatch, "again", lambda self, current, cause: None)


def agreed_ends_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A round that ended because members join or leave counts towards no limit."""
    original = Budget.spend

    def spend(self: Budget, now: float, cause: Cause) -> None:
        if cause.kind is not CauseKind.MEMBERS_CHANGE:
            original(self, now, cause)

    patch.setattr(Budget, "spend", spend)


def unproven_connections_are_a_bad_link(patch: pytest.MonkeyPatch) -> None:
    """Two rounds in a row that unproven connections ended are taken for collectives that cannot work."""
    original = Membership.step

    def step(self: Membership, event: events.Event, now: float) -> list[Action]:
        if isinstance(event, events.PeerUnproven):
            event = events.CollectiveRaised(event.worker_id, event.round_id, event.reason)
        return original(self, event, now)

    patch.setattr(Membership, "step", step)


def newcomers_are_never_at_fault(patch: pytest.MonkeyPatch) -> None:
    """Rounds that fail because newcomers cannot connect end the run, although the others have trained."""
    patch.setattr(RoundControl, "newcomers_at_fault", lambda self, now: [])


def suspects_are_killed_at_once(patch: pytest.MonkeyPatch) -> None:
    """A worker that is silent is killed, whether another one holds the state or not."""
    patch.setattr(Suspects, "_dispensable", lambda self, worker, *at: True)


def newcomers_can_take_over(patch: pytest.MonkeyPatch) -> None:
    """Any worker that waits is as good as one that holds the state."""
    patch.setattr(Suspects, "_offers_the_state", lambda self, worker, *at: worker.state is WorkerState.WAITING)


def suspects_are_never_killed(patch: pytest.MonkeyPatch) -> None:
    """Silent workers are waited for."""
    patch.setattr(Suspects, "_dispensable", lambda self, worker, *at: False)


def suspicion_is_for_good(patch: pytest.MonkeyPatch) -> None:
    """A suspected worker that answers again stays suspected."""
    patch.setattr(Suspects, "note_sign_of_life", lambda self, event, now: False)


def silence_breaks_no_round(patch: pytest.MonkeyPatch) -> None:
    """The others go on waiting for a member that is silent."""
    patch.setattr(Suspects, "breaking", lambda self, current, now: None)


def quiet_is_for_good(patch: pytest.MonkeyPatch) -> None:
    """A worker that was quiet once is taken for one that is about to be silent, also when it has answered."""
    original = Suspects._wake

    def wake(self: Suspects, worker_id: int, kinds: Collection[CauseKind]) -> bool:
        quiet = worker_id in self._quiet
        found = original(self, worker_id, kinds)
        if quiet:
            self._quiet.add(worker_id)
        return found

    patch.setattr(Suspects, "_wake", wake)


def outlived_slots_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A command that goes on after its training process has died keeps its slot without a limit."""
    patch.setattr(Roster, "trainer_ended", lambda self, worker, stop_at: None)


def newcomers_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A round is interrupted for newcomers as soon as they are ready, whatever --resize-pause says."""

    def hasty(plan: RoundPlan, members: set[int], under_way: float, _: float, **kept: Any) -> Round:
        return Round(plan, members, under_way, **kept)

    patch.setattr(round_control, "Round", hasty)


def newcomers_interrupt_others_that_have_just_joined(patch: pytest.MonkeyPatch) -> None:
    """A round that newcomers have joined is interrupted for others as soon as these are ready."""
    patch.setattr(Round, "may_take_newcomers", lambda self, now: now >= self.open_at)


def newcomers_hold_up_the_first_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A newcomer waits as long as others become ready one after the other."""
    patch.setattr(placement, "MOST_JOIN_WINDOWS", math.inf)


def checkpoints_are_not_looked_for_again(patch: pytest.MonkeyPatch) -> None:
    """What a worker found on disk while others trained counts when they are lost."""
    patch.setattr(RoundControl, "_find_newest_checkpoint", lambda self: [])


def a_late_offer_has_seen_every_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """What a worker found on disk while others trained counts if its offer comes when they are lost."""
    original = Membership._take_offer

    def take_offer(self: Membership, event: events.WorkerWaiting, worker: Worker, now: float) -> list[Action]:
        worker.looks_after = self.rounds.completed
        return original(self, event, worker, now)

    patch.setattr(Membership, "_take_offer", take_offer)


def checkpoints_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Where all that held the state are lost, the run ends although it has checkpoints."""
    original = Obstacles._after

    def after(self: Obstacles, last: Round, call: RunCall, now: float) -> Obstacle | None:
        return original(self, last, replace(call, checkpoints=False), now)

    patch.setattr(Obstacles, "_after", after)


def sizes_that_fail_are_tried_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A number of workers with which all raise is tried again, until the run ends of it."""
    patch.setattr(NewSizes, "max_workers", property(lambda self: self.limit))
    patch.setattr(NewSizes, "allowed", lambda self, count: min(count, self.limit))


def the_size_is_to_blame_for_every_error(patch: pytest.MonkeyPatch) -> None:
    """An error that was raised with fewer workers as well counts as that of a new size."""
    original = NewSizes._failed

    def failed(self: NewSizes, ended: Round, failures: Mapping[int, Failure]) -> set[int]:
        self._known.clear()
        return original(self, ended, failures)

    patch.setattr(NewSizes, "_failed", failed)


def the_second_stall_at_a_place_ends_the_run(patch: pytest.MonkeyPatch) -> None:
    """Work that is not announced has no more time than any other: a run in which it is met again is over."""
    original = LongWork.judge

    def judge(self: LongWork, event: events.WorkerStalled, current: Round) -> Judgement:
        found = original(self, event, current)
        again = found.verdict is StallVerdict.FIRST_OF_MANY
        return Judgement(StallVerdict.HOPELESS, found.cause) if again else found

    patch.setattr(LongWork, "judge", judge)


def drained_workers_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """The workers of a drained host leave at once, while their replacements boot."""
    patch.setattr(placement, "leave_at", lambda now, within: None)


def drained_workers_stay_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The workers of a drained host wait for their replacements however long these take."""
    patch.setattr(placement, "leave_at", lambda now, within: now + 10_000 if within else None)


def a_failure_ends_the_wait_for_replacements(patch: pytest.MonkeyPatch) -> None:
    """When a round fails, workers of a drained host are not in the next one."""
    patch.setattr(RoundControl, "_size_to_keep", lambda self, now: 0)


MUTANTS: tuple[Patch, ...] = (
    drained_workers_do_not_wait,
    drained_workers_stay_for_ever,
    a_failure_ends_the_wait_for_replacements,
    checkpoints_are_not_looked_for_again,
    a_late_offer_has_seen_every_checkpoint,
    checkpoints_are_forgotten,
    newcomers_are_never_at_fault,
    suspects_are_killed_at_once,
    newcomers_can_take_over,
    suspects_are_never_killed,
    suspicion_is_for_good,
    silence_breaks_no_round,
    quiet_is_for_good,
    stop_at_the_highest_report,
    stop_at_the_lowest_report,
    members_do_not_wait_for_the_verdict,
    stop_overrides_abort,
    done_is_no_report,
    rank_zero_by_age_alone,
    versions_by_count_alone,
    only_newcomers_receive,
    later_calls_start_unsynced,
    torn_state_is_offered,
    torn_state_counts_as_clean,
    boundaries_count_before_the_sync,
    rounds_form_before_all_have_stopped,
    scratch_is_as_good_as_state,
    no_state_keeper_stays,
    finish_when_one_is_done,
    survivors_are_not_notified,
    cursor_forgets_the_last_row,
    bugs_are_retried_for_ever,
    bugs_that_take_turns_are_retried_for_ever,
    every_error_is_the_same,
    one_accident_is_a_bug,
    quarantine_stops_the_run,
    quarantine_is_for_good,
    a_kill_is_a_hosts_fault_for_good,
    agreed_ends_are_not_counted,
    unproven_connections_are_a_bad_link,
    uneven_steps_are_waited_out,
    members_that_stop_are_not_waited_for,
    uneven_steps_are_tried_for_ever,
    outlived_slots_are_kept,
    newcomers_do_not_wait,
    newcomers_interrupt_others_that_have_just_joined,
    newcomers_hold_up_the_first_for_ever,
    sizes_that_fail_are_tried_for_ever,
    the_size_is_to_blame_for_every_error,
    the_second_stall_at_a_place_ends_the_run,
)
