"""The data plane: collectives between simulated workers, and how they break when a member is lost.

As with Gloo, a collective ends at each member on its own: when one dies, some of the others may have got through and
some not; some see a reset at once, and some hang until they are severed.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.clockwork import Clockwork

Wake = Callable[[Any, BaseException | None], None]


class Severed(Exception):  # noqa: N818  it is what a collective raises
    """The collective was broken."""


@dataclass
class Meeting:
    """One collective: what the members that entered it brought, and which of them still wait in it."""

    parties: frozenset[int]
    brought: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, Wake] = field(default_factory=dict)


class Fabric:
    """All collectives of a run, by round."""

    def __init__(self, clockwork: Clockwork, rng: random.Random) -> None:
        self._clockwork = clockwork
        self._rng = rng
        self._seals = random.Random(rng.getstate()[1][0])
        self._meetings: dict[Hashable, dict[Hashable, Meeting]] = {}
        self._gone: dict[Hashable, set[int]] = {}
        self.completed_in: Callable[[Any, frozenset[int]], None] = lambda _round_id, _parties: None

    def meet(
        self, round_id: Hashable, name: Hashable, parties: frozenset[int], who: int, what: Any, wake: Wake
    ) -> None:
        """Enter a collective; `wake` is called with what all parties brought, or with Severed."""
        gone = self._gone.setdefault(round_id, set())
        meeting = self._meetings.setdefault(round_id, {}).setdefault(name, Meeting(parties))
        assert meeting.parties == parties, f"unequal parties in {name} of round {round_id}"
        assert who not in meeting.brought, f"worker {who} enters {name} of round {round_id} twice"
        meeting.brought[who] = what
        meeting.waiting[who] = wake
        if gone & parties:
            if self._rng.random() < 0.7:
                self._break(meeting, who)
        elif meeting.brought.keys() == parties:
            self.completed_in(round_id, parties)
            for party in list(meeting.waiting):
                complete = functools.partial(self._complete, meeting, party)
                # Slower than in any network, so that members die while some have left the seal and others have not.
                seal = isinstance(name, tuple) and name[0] == "seal"
                self._clockwork.after(
                    self._seals.uniform(0, 0.06) if seal else self._rng.uniform(0.0005, 0.004), complete
                )

    def leave(self, round_id: Hashable, who: int) -> None:
        """A member's connections of a round close: it died, tore its group down, or was severed."""
        gone = self._gone.setdefault(round_id, set())
        if who in gone:
            return
        gone.add(who)
        for meeting in self._meetings.get(round_id, {}).values():
            meeting.waiting.pop(who, None)
            if who in meeting.parties:
                for party in list(meeting.waiting):
                    if self._rng.random() < 0.6:
                        self._break(meeting, party)

    def sever(self, round_id: Hashable, who: int) -> None:
        """Break whatever a worker waits for in a round."""
        for meeting in self._meetings.get(round_id, {}).values():
            if who in meeting.waiting:
                self._break(meeting, who)
        self.leave(round_id, who)

    def forget_before(self, round_id: Any) -> None:
        """Drop collectives that no worker can be in any more."""
        for old in [r for r in self._meetings if r < round_id]:
            if not any(meeting.waiting for meeting in self._meetings[old].values()):
                del self._meetings[old]

    def _complete(self, meeting: Meeting, who: int) -> None:
        if wake := meeting.waiting.pop(who, None):
            wake(dict(meeting.brought), None)

    def _break(self, meeting: Meeting, who: int) -> None:
        wake = meeting.waiting.pop(who)
        self._clockwork.after(self._rng.uniform(0.001, 0.012), lambda: wake(None, Severed()))
