"""The journal of a simulated run: what the next driver's core begins with, is given, and must order again."""

from __future__ import annotations

import json
import random
from typing import Any

from edriver.driver.core.membership import Membership
from edriver.driver.journal.entries import event_from_bytes, event_to_bytes
from edriver.driver.run.driver_state import state_codec
from edriver.model import actions, events
from edriver.model.settings import Settings
from tests.sim.checking import check
from tests.sim.scanning import check_indexes

SNAPSHOT_EVENTS = (4, 30, 200, 10**9)
"""After how many events the driver takes a snapshot, by seed; the last: never."""


class SimJournal:
    """A snapshot of the core, the events after it, and what was ordered then.

    Args:
        seed: of the core's draws.
        settings: the core's.

    Attributes:
        entries: when each event came, what it was, and what the core ordered. An event never changes, so it is written
            when it is read: see `read_back`.
        draws: the core's draws.
        settings: the core's.
    """

    def __init__(self, seed: int, settings: Settings) -> None:
        self.entries: list[tuple[float, events.Event, list[actions.Action]]] = []
        self.draws = random.Random(seed)
        self._most = SNAPSHOT_EVENTS[seed % len(SNAPSHOT_EVENTS)]
        self.settings = settings
        self._snapshot: tuple[str, Any] = "", None

    def write_down(self, now: float, event: events.Event, orders: list[actions.Action], core: Membership) -> None:
        """Keep an event; what was ordered is there for the comparison."""
        self.entries.append((now, event, orders))
        if len(self.entries) == self._most:
            self.take_snapshot(core)

    def take_snapshot(self, core: Membership) -> None:
        """The events are not needed any more: what follows from them is kept."""
        self._snapshot = "".join(state_codec().pieces(core=core)), self.draws.getstate()
        self.entries.clear()

    def restored(self) -> Membership:
        """The core as it was when the snapshot was taken."""
        state, drawn = self._snapshot
        self.draws = random.Random()
        self.draws.setstate(drawn)
        core = Membership(self.settings, now=0.0, draw=self.draws.random)
        state_codec(strict=True).load(core, json.loads(state), "core")
        check_indexes(core)
        return core

    def replay(self, core: Membership) -> None:
        """Give a core the events after the snapshot; it must order the same again."""
        for now, event, ordered in self.entries:
            again = core.step(read_back(event), now)
            check(again == ordered, f"replayed, {event} leads to {again} and not to {ordered}")


def read_back(event: events.Event) -> events.Event:
    """An event as the next driver reads it."""
    return event_from_bytes(event_to_bytes(event))
