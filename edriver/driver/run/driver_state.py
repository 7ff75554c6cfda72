"""What a driver knows, as data: all that follows from the events that its core was given. See journal/state.py.

A snapshot of it takes the place of the events: the core, the event history and the links. It follows a second after an
order, or in the first pause between events after that, ten seconds after the order at most; and when there are half a
megabyte of events, some thousands. One that takes long to write takes a twentieth of the driver's time at most. So a
resume takes a fraction of a second however long the run has lasted.

Its size is under a kilobyte for each worker: it has nothing of what members' steps consist of, nor the older rounds of
a large run. At a thousand hosts it takes a second to write, in pieces of some milliseconds. It is the state of one
moment because the core, which is most of it, stands still from the first piece to the last: only the core loop changes
it, and that takes in no event meanwhile. The agents are copied before the first piece. The event history, which
heartbeats change, is one piece.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Generator, Iterator
from functools import cache
from types import ModuleType
from typing import NamedTuple

from edriver import model
from edriver.driver import core, observe
from edriver.driver.agents import agent_identity, registry
from edriver.driver.core import failures
from edriver.driver.core.membership import Membership
from edriver.driver.journal.codec import CodecError, Json, is_data
from edriver.driver.journal.keyed_random import KeyedRandom
from edriver.driver.journal.state import StateCodec
from edriver.driver.observe import pace
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import EventHistory
from edriver.model.actions import FinishRun
from edriver.model.settings import Settings
from edriver.runview import distribution
from edriver.wire import link


class DriverState(NamedTuple):
    """The parts of a driver that a snapshot holds.

    Attributes:
        membership: the core.
        event_history: the history of the run.
        announcements: the announcements made.
        registry: the agents, with the orders that they have not acknowledged.
        draws: the draws of the run, of which the number is kept.
    """

    membership: Membership
    event_history: EventHistory
    announcements: Announcements
    registry: registry.AgentRegistry
    draws: KeyedRandom

    def to_bytes(self, ended: FinishRun | None) -> bytes:
        """All of it as JSON; arguments and errors as those of `pieces`."""
        return "".join(self.pieces(ended)).encode()

    def pieces(self, ended: FinishRun | None) -> Generator[str, None, None]:
        """All of it as JSON, piece by piece. The core must not take in an event before the last one.

        Args:
            ended: how the run has ended, if it has.

        Raises:
            CodecError: something has no form in the journal.
        """
        return state_codec().pieces(
            at_once=("history", "announcements"),
            core=self.membership,
            history=self.event_history,
            announcements=self.announcements,
            agents=self.registry.agents,
            draws=self.draws.count,
            ended=ended,
        )

    def restore(self, state: Json) -> FinishRun | None:
        """Load another driver's state of this run into these newly created parts.

        Args:
            state: the other driver's state, as read from JSON.

        Returns:
            how the run has ended, if it has.

        Raises:
            ValueError: it is not a valid state.
        """
        codec = state_codec()
        codec.load(self.membership, state, "core")
        codec.load(self.event_history, state, "history")
        codec.load(self.announcements, state, "announcements")
        agents, draws, ended = (codec.read(state, name) for name in ("agents", "draws", "ended"))
        if not isinstance(agents, registry.KnownAgents):
            raise CodecError("it has no agents")
        if type(draws) is not int or not isinstance(ended, FinishRun | None):
            raise CodecError("its draws or its end are invalid")
        self.registry.restore(agents)
        self.draws.count = draws
        return ended


@cache
def state_codec(*, strict: bool = False) -> StateCodec:
    """Knows all data of the core and of what observes it, and refers to no module by name: they may be moved.

    Args:
        strict: see StateCodec.
    """
    alone = [link, agent_identity, registry, distribution]
    # Not all of `observe`: its folder `metrics` has no data, and loads prometheus_client.
    modules = [*alone, *_modules(model), *_modules(core), *_modules(failures), *_modules(observe), *_modules(pace)]
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and is_data(kind) and kind is not Settings
    }
    return StateCodec(kinds, (Settings,), strict=strict)


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.ispkg:
            yield importlib.import_module(found.name)
