"""A driver of another release takes a run over: its core would have decided otherwise on the same events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edriver.driver.core.membership import Membership
from edriver.driver.journal.orders import OrderCheck, OtherOrderError, order_text
from edriver.model import actions
from tests.sim.faults import Nemesis
from tests.sim.sim_driver import SimDriver
from tests.sim.sim_journal import read_back

SEEDS = 240


def orders_of(step: list[actions.Action]) -> list[str]:
    return [order for action in step if (order := order_text(action, 0)) is not None]


class Upgrade:
    """Each take-over is tried by the next release first: it takes in newcomers sooner, and stops nobody for a resize.

    Where that one refuses, because what it orders is not what was ordered, the run's own release takes over and writes
    a snapshot, and is killed at once: then the next one must take over, whatever it would have ordered before.

    Attributes:
        accepted: how often the next release has taken over at its first try,
        refused: and how often it has refused.
    """

    def __init__(self) -> None:
        self.accepted = self.refused = 0

    def successor(self, driver: SimDriver) -> Membership:
        """See SimDriver."""
        journal = driver.journal
        before = journal.settings
        if before.join_window == 0.0:  # it has been upgraded
            return ORIGINAL(driver)
        newer = replace(before, join_window=0.0, resize_pause=0.0, newcomer_delay=2 * before.newcomer_delay)
        try:
            journal.settings = newer
            core = self._taken_over(driver)
            self.accepted += 1
        except OtherOrderError:
            self.refused += 1
            journal.settings = before
            journal.take_snapshot(ORIGINAL(driver))
            journal.settings = newer
            core = self._taken_over(driver)
        journal.take_snapshot(core)
        return core

    def _taken_over(self, driver: SimDriver) -> Membership:
        core = driver.journal.restored()
        given = OrderCheck(order for _, _, step in driver.journal.entries for order in orders_of(step))
        known = sum(len(orders_of(step)) for _, _, step in driver.journal.entries)
        ordered: list[actions.Action] = []
        for now, event, _ in driver.journal.entries:
            step = core.step(read_back(event), now)
            given.compare(orders_of(step))
            ordered += [action for action in step if order_text(action, 0) is not None]
        given.finish()
        for order in ordered[known:]:  # never sent: they go out now
            driver._clockwork.after(0.0, lambda order=order: driver._perform(order))  # type: ignore[misc]
        return core


ORIGINAL = SimDriver.successor


def test_a_release_that_decides_otherwise_takes_over_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade = Upgrade()
    monkeypatch.setattr(SimDriver, "successor", lambda driver: upgrade.successor(driver))
    for seed in range(SEEDS):
        Nemesis(seed).run()
    assert upgrade.accepted > 3
    assert upgrade.refused > 3


def test_orders_are_compared_in_their_order_and_not_by_their_events() -> None:
    check = OrderCheck(["a", "b", "c"])
    check.compare([])
    check.compare(["a", "b"])
    check.compare(["c", "d"])  # d was never given
    check.finish()
    with pytest.raises(OtherOrderError, match="d is ordered, and it was b"):
        OrderCheck(["a", "b"]).compare(["a", "d"])
    with pytest.raises(OtherOrderError, match="nothing is ordered, and it was a"):
        OrderCheck(["a"]).finish()
