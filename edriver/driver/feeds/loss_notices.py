"""Notices of a source that hosts will be lost: they become drains with a deadline.

A source repeats the time that is left with each answer; the core learns it once, and again if the deadline has come
nearer by more than an answer may take. A notice that is withdrawn, while the host is still named, ends its drain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from edriver.model import events
from edriver.model.hosts import HostSet

TOLERANCE: Final = 5.0
"""Seconds by which a deadline may come nearer without news: polls take time, and sources round."""

REASON: Final = "its source gives notice of its loss"
"""Shown as the reason of the drain."""


class LossNotices:
    """The notices that are in force. Pure."""

    def __init__(self) -> None:
        """No host is about to be lost."""
        self._deadlines: dict[str, float] = {}

    def accept(
        self, answer: HostSet, in_force: HostSet, now: float
    ) -> Iterator[events.DrainRequested | events.UndrainRequested]:
        """What follows from an answer.

        Args:
            answer: the answer, with what is left to each host.
            in_force: the hosts that the core knows.
            now: the time, in seconds of any clock that is not set.
        """
        left: Mapping[str, float] = {host.name: host.leaving for host in answer if host.leaving is not None}
        for name in [name for name in self._deadlines if name not in left]:
            if name in answer:
                yield events.UndrainRequested(name, None)
            if name in answer or name not in in_force:
                del self._deadlines[name]
        for name, seconds in left.items():
            known = self._deadlines.get(name)
            if name in in_force and (known is None or now + seconds < known - TOLERANCE):
                self._deadlines[name] = now + seconds
                yield events.DrainRequested(name, None, REASON, within=seconds, notice=True)
