"""Wrong variants of how a driver takes a run over, each of which the simulation must catch."""

from __future__ import annotations

import random

import pytest

from edriver.agent.lost_round import LostRound
from edriver.driver.core.membership import Membership
from edriver.driver.core.round import RoundState
from edriver.model import actions, events
from tests.sim.mutants import Patch
from tests.sim.sim_driver import SimDriver
from tests.sim.sim_journal import SimJournal, read_back


def the_last_event_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """What follows from an event is done before the journal has it."""
    original = SimJournal.replay

    def replay(self: SimJournal, core: Membership) -> None:
        del self.entries[-1:]
        original(self, core)

    patch.setattr(SimJournal, "replay", replay)


def _not_written(patch: pytest.MonkeyPatch, kind: type[events.Event]) -> None:
    original = SimJournal.write_down

    def write_down(
        self: SimJournal, now: float, event: events.Event, orders: list[actions.Action], core: Membership
    ) -> None:
        if not isinstance(event, kind):
            original(self, now, event, orders, core)

    patch.setattr(SimJournal, "write_down", write_down)


def ticks_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """A deadline that has passed is no event."""
    _not_written(patch, events.Ticked)


def discovery_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """Discovery will answer again."""
    _not_written(patch, events.HostsObserved)


def events_are_replayed_at_the_time_of_the_replay(patch: pytest.MonkeyPatch) -> None:
    """Times are not written."""

    def successor(self: SimDriver) -> Membership:
        core = self.journal.restored()
        for _, event, _ in self.journal.entries:
            core.step(read_back(event), self.now)
        return core

    patch.setattr(SimDriver, "successor", successor)


def draws_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """The next driver draws other numbers."""
    original = SimJournal.restored

    def restored(self: SimJournal) -> Membership:
        core = original(self)
        self.draws.seed(random.Random(len(self.entries)).random())
        return core

    patch.setattr(SimJournal, "restored", restored)


def a_snapshot_leaves_its_events(patch: pytest.MonkeyPatch) -> None:
    """What a snapshot holds is replayed once more."""
    original = SimJournal.take_snapshot

    def take_snapshot(self: SimJournal, core: Membership) -> None:
        before = list(self.entries)
        original(self, core)
        self.entries.extend(before)

    patch.setattr(SimJournal, "take_snapshot", take_snapshot)


def events_after_a_snapshot_are_left_out(patch: pytest.MonkeyPatch) -> None:
    """The next driver goes on from the snapshot."""
    patch.setattr(SimJournal, "replay", lambda self, core: None)


def a_snapshot_is_taken_before_its_last_event(patch: pytest.MonkeyPatch) -> None:
    """The event that made the snapshot due is in neither."""
    original = SimJournal.restored

    def restored(self: SimJournal) -> Membership:
        del self.entries[:1]
        return original(self)

    patch.setattr(SimJournal, "restored", restored)


def replayed_orders_are_given_again(patch: pytest.MonkeyPatch) -> None:
    """Agents get what the driver before has ordered once more, as new orders."""
    original = SimDriver.successor

    def successor(self: SimDriver) -> Membership:
        core = original(self)
        for _, _, orders in list(self.journal.entries):
            for order in orders:
                self._perform(order)
        return core

    patch.setattr(SimDriver, "successor", successor)


def an_open_interrupt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Members that wait for a verdict get none from the next driver."""
    original = SimDriver.successor

    def successor(self: SimDriver) -> Membership:
        core = original(self)
        if core.round is not None and core.round.running:
            core.round.interrupt, core.round.state = None, RoundState.RUNNING
        return core

    patch.setattr(SimDriver, "successor", successor)


def the_older_driver_goes_on_deciding(patch: pytest.MonkeyPatch) -> None:
    """Nothing keeps a driver from giving orders once another has taken over."""
    original_crash, original_feed = SimDriver.crash, SimDriver.feed
    older: list[Membership] = []

    def crash(self: SimDriver, seconds: float) -> None:
        older[:] = [self.core]
        original_crash(self, seconds)

    def feed(self: SimDriver, event: events.Event) -> None:
        original_feed(self, event)
        if older and not self.outcome and not isinstance(event, events.DriverResumed):
            for order in older[0].step(event, self.now):
                self._perform(order)

    patch.setattr(SimDriver, "crash", crash)
    patch.setattr(SimDriver, "feed", feed)


def without_a_driver_none_are_freed(patch: pytest.MonkeyPatch) -> None:
    """Members of a round that has lost one wait in it for the next driver."""
    patch.setattr(LostRound, "notices", lambda _self, _members: iter(()))


JOURNAL_MUTANTS: tuple[Patch, ...] = (
    the_last_event_is_not_written,
    ticks_are_not_written,
    discovery_is_not_written,
    events_are_replayed_at_the_time_of_the_replay,
    draws_begin_anew,
    a_snapshot_leaves_its_events,
    events_after_a_snapshot_are_left_out,
    a_snapshot_is_taken_before_its_last_event,
    replayed_orders_are_given_again,
    an_open_interrupt_is_forgotten,
    the_older_driver_goes_on_deciding,
    without_a_driver_none_are_freed,
)
