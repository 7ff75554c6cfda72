"""Unauthenticated callers of a server: how long they may stay, and which one is closed for another.

A server has a limited number of descriptors. Without a bound, callers that never prove anything would use them up and
keep members out. Members are never closed: they are not kept here.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Caller = TypeVar("Caller")


class UnauthenticatedCallers(Generic[Caller]):
    """The callers that have proven nothing yet, oldest first. It has no clock and no connection.

    Args:
        most: how many there may be.
        timeout: seconds in which each must prove that it may be here.
        first_word: seconds during which one that has sent nothing is not closed in favor of others,
        head_start: and one that has.
    """

    def __init__(self, most: int, timeout: float, first_word: float, head_start: float) -> None:
        self._most = most
        self._timeout = timeout
        self._first_word = first_word
        self._head_start = head_start
        self._since: dict[Caller, float] = {}
        self._silent: dict[Caller, float] = {}

    def add(self, caller: Caller, now: float) -> None:
        """A caller has connected."""
        self._since[caller] = now
        self._silent[caller] = now

    def note_data(self, caller: Caller) -> None:
        """A caller has sent something."""
        self._silent.pop(caller, None)

    def discard(self, caller: Caller) -> None:
        """A caller has authenticated, or has disconnected."""
        self._since.pop(caller, None)
        self._silent.pop(caller, None)

    @property
    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return len(self._since) >= self._most

    def overdue(self, now: float) -> list[Caller]:
        """Those whose time is over."""
        late: list[Caller] = []
        for caller, since in self._since.items():
            if since + self._timeout > now:
                break
            late.append(caller)
        return late

    @property
    def deadline(self) -> float | None:
        """When the next one's time is over; None: there is none."""
        return next(iter(self._since.values())) + self._timeout if self._since else None

    def dispensable(self, now: float) -> Caller | None:
        """The one to close when there is no room for another; None: all are too new.

        The oldest of those that have sent nothing, since a member speaks as soon as it has connected; else the oldest.
        """
        for kept, spared in ((self._silent, self._first_word), (self._since, self._head_start)):
            caller, since = next(iter(kept.items()), (None, now))
            if caller is not None and since + spared <= now:
                return caller
        return None
