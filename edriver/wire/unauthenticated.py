"""The limiter of callers that have not authenticated: how many a server has, for how long, and which one makes room.

A server has a limited number of descriptors and threads. Without a bound, callers that never prove anything would use
them up and keep others out. Authenticated callers are never closed: they are not kept here. All servers of edriver
decide by this class; they differ in how they learn of a caller and how they close its connection:

* gRPC's ports look at their connections from outside (`port_watch.py`);
* the dashboard's event loop is called for each connection (`edriver/dashboard/callers.py`);
* the threads of the metrics server have a place for each (`edriver/driver/observe/metrics/bounded_server.py`);
* a worker's store waits in a selector (`edriver/worker/group/store_server.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Generic, TypeVar

Caller = TypeVar("Caller", bound=Hashable)


class UnauthenticatedCallers(Generic[Caller]):
    """The callers that have proven nothing yet, oldest first. It has no clock and no connection.

    Args:
        most: how many there may be.
        timeout: seconds in which each must authenticate; infinite for no limit.
        first_word: seconds during which one that has sent nothing is not closed in favor of others,
        head_start: and one that has.
    """

    def __init__(self, most: int, timeout: float, first_word: float = 0.0, head_start: float = 0.0) -> None:
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

    def observe(self, callers: Iterable[Caller], now: float) -> list[Caller]:
        """Take in all callers at once, for a server that is not told of each one.

        Args:
            callers: all that are connected now and have not authenticated, those that came together in their order.
            now: the time in seconds, monotonic.

        Returns:
            those to close: the oldest of too many, and those whose time is over. They count until they are gone.
        """
        there = dict.fromkeys(callers)
        for gone in self._since.keys() - there.keys():
            self.discard(gone)
        for caller in there:
            if caller not in self._since:
                self.add(caller, now)
        surplus = islice(self._since, max(0, len(self._since) - self._most))
        return list(dict.fromkeys([*surplus, *self.overdue(now)]))

    @property
    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return len(self._since) >= self._most

    @property
    def crowded(self) -> bool:
        """Whether there are more than there may be."""
        return len(self._since) > self._most

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
        """When the next caller's time is over; None without callers."""
        return next(iter(self._since.values())) + self._timeout if self._since else None

    def dispensable(self, now: float) -> Caller | None:
        """The caller to close when there is no room for another; None if all are too new.

        The oldest of those that have sent nothing, since a member speaks as soon as it has connected; else the oldest.
        """
        for kept, spared in ((self._silent, self._first_word), (self._since, self._head_start)):
            caller, since = next(iter(kept.items()), (None, now))
            if caller is not None and since + spared <= now:
                return caller
        return None
