"""The view of a run beside the core, whatever happens: a fold of the events knows what the core knows."""

from __future__ import annotations

import pytest

from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.model import actions, events
from edriver.runview.run_view import ENDS, RunView
from edriver.v1 import status_pb2
from tests.sim.random_events import RandomEvents

STEPS = 150


class WatchedEvents(RandomEvents):
    """A run whose events are folded as they come."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.told: list[status_pb2.Event] = []
        self._announcements = Announcements()
        self._event_history = EventHistory(self.core, ProgressTracker(lambda: self._now), lambda: 1000.0 + self._now)

    @property
    def view(self) -> RunView:
        return self._event_history.view

    def step(self, event: events.Event) -> list[actions.Action]:
        """Give the core an event, and have what follows folded."""
        loss = self._announcements.loss(event, self.core.roster)
        step = super().step(event)
        lines = [*self._announcements.lines(loss, step)]
        self.told += self._event_history.take(event, step, loss, lines)
        for action in step:
            if isinstance(action, actions.FinishRun):
                self.told += self._event_history.end(action)
        self._compare()
        return step

    def _compare(self) -> None:
        current, view = self.core.round, self.view
        assert view.size == (len(current.plan.seats) if current and current.running else 0)
        assert {end: view.count(end) for end in ENDS} == {end: getattr(self.core.budgets, end).total for end in ENDS}


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 200, 50)], ids=str)
def test_what_is_folded_is_what_the_core_has_decided(seeds: range) -> None:
    for seed in seeds:
        run = WatchedEvents(seed)
        run.run(STEPS)
        again = RunView()
        for event in run.told:
            again.fold(event)
        assert again == run.view, seed
