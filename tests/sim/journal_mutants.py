"""Wrong variants of how a driver takes a run over, each of which the simulation must catch."""

from __future__ import annotations

import random

import pytest

from edriver.driver.core import actions, events
from edriver.driver.core.membership import Membership
from edriver.driver.journal.entries import event_from_bytes
from tests.sim.mutants import Patch
from tests.sim.world import World


def the_last_event_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """What follows from an event is done before the journal has it."""
    original = World.replay

    def replay(self: World, core: Membership) -> None:
        del self.journal[-1:]
        original(self, core)

    patch.setattr(World, "replay", replay)


def ticks_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """A deadline that has passed is no event."""
    original = World.write_down

    def write_down(self: World, event: events.Event, orders: list[actions.Action]) -> None:
        if not isinstance(event, events.Ticked):
            original(self, event, orders)

    patch.setattr(World, "write_down", write_down)


def discovery_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """Discovery will answer again."""
    original = World.write_down

    def write_down(self: World, event: events.Event, orders: list[actions.Action]) -> None:
        if not isinstance(event, events.HostsObserved):
            original(self, event, orders)

    patch.setattr(World, "write_down", write_down)


def events_are_replayed_at_the_time_of_the_replay(patch: pytest.MonkeyPatch) -> None:
    """Times are not written."""

    def replay(self: World, core: Membership) -> None:
        for _, event, _ in self.journal:
            core.step(event_from_bytes(event), self.clockwork.now)

    patch.setattr(World, "replay", replay)


def draws_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """The next driver draws other numbers."""
    original = World.restored

    def restored(self: World) -> Membership:
        core = original(self)
        self._draws.seed(random.Random(self.drivers).random())
        return core

    patch.setattr(World, "restored", restored)


def a_snapshot_leaves_its_events(patch: pytest.MonkeyPatch) -> None:
    """What a snapshot holds is replayed once more."""
    original = World.take_snapshot

    def take_snapshot(self: World) -> None:
        before = list(self.journal)
        original(self)
        self.journal.extend(before)

    patch.setattr(World, "take_snapshot", take_snapshot)


def events_after_a_snapshot_are_left_out(patch: pytest.MonkeyPatch) -> None:
    """The next driver goes on from the snapshot."""
    patch.setattr(World, "replay", lambda self, core: None)


def a_snapshot_is_taken_before_its_last_event(patch: pytest.MonkeyPatch) -> None:
    """The event that made the snapshot due is in neither."""
    original = World.restored

    def restored(self: World) -> Membership:
        del self.journal[:1]
        return original(self)

    patch.setattr(World, "restored", restored)


def replayed_orders_are_given_again(patch: pytest.MonkeyPatch) -> None:
    """Agents get what the driver before has ordered once more, as new orders."""
    original = World.replay

    def replay(self: World, core: Membership) -> None:
        original(self, core)
        for _, _, orders in list(self.journal):
            for order in orders:
                self._perform(order)

    patch.setattr(World, "replay", replay)


def an_open_interrupt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Members that wait for a verdict get none from the next driver."""
    original = World.replay

    def replay(self: World, core: Membership) -> None:
        original(self, core)
        if core.state.round is not None:
            core.state.round.interrupt = None

    patch.setattr(World, "replay", replay)


def the_older_driver_goes_on_deciding(patch: pytest.MonkeyPatch) -> None:
    """Nothing keeps a driver from giving orders once another has taken over."""
    original_crash, original_feed = World.crash_driver, World.feed
    older: list[Membership] = []

    def crash_driver(self: World) -> None:
        older[:] = [self.core]
        original_crash(self)

    def feed(self: World, event: events.Event) -> None:
        original_feed(self, event)
        if older and not self.outcome and not isinstance(event, events.DriverResumed):
            for order in older[0].step(event, self.clockwork.now):
                self._perform(order)

    patch.setattr(World, "crash_driver", crash_driver)
    patch.setattr(World, "feed", feed)


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
)
