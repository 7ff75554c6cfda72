"""Virtual time: a heap of calls, run in order. Two calls at one time run in the order in which they were planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clockwork:
    """A virtual clock and what is to happen on it. Times are in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay: float, call: Callable[[], None]) -> None:
        """Plan a call."""
        self._count += 1
        heapq.heappush(self._planned, (self.now + delay, self._count, call))

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Run until a condition holds, or the time is up, or nothing is left; returns whether the condition holds."""
        while not until():
            if not self._planned or self._planned[0][0] > limit:
                return until()
            self.now, _, call = heapq.heappop(self._planned)
            call()
        return True


class Channel:
    """A one-way stream between two processes: in order, with a delay for each message; can be cut and healed.

    What is sent while it is cut arrives after it has healed, as on a stream that is dialled anew. It may be cut for
    several reasons at a time.
    """

    def __init__(self, clockwork: Clockwork, delay: Callable[[], float]) -> None:
        self._clockwork = clockwork
        self._delay = delay
        self._last = 0.0
        self._cuts = 0
        self._sent = 0
        self._kept: list[tuple[int, Callable[[], None]]] = []

    def send(self, deliver: Callable[[], None]) -> None:
        """Deliver after a delay, behind everything sent before."""
        self._sent += 1
        self._send(self._sent, deliver)

    def _send(self, number: int, deliver: Callable[[], None]) -> None:
        if self._cuts:
            self._kept.append((number, deliver))
            return
        at = max(self._clockwork.now + self._delay(), self._last)
        self._last = at
        self._clockwork.after(at - self._clockwork.now, lambda: self._arrive(number, deliver))

    def _arrive(self, number: int, deliver: Callable[[], None]) -> None:
        if self._cuts:
            self._kept.append((number, deliver))
        else:
            deliver()

    def cut(self) -> None:
        """Let nothing through."""
        self._cuts += 1

    def heal(self) -> None:
        """A reason to cut it is gone. After the last one, what was kept comes through, and all that follows."""
        self._cuts -= 1
        if self._cuts:
            return
        kept, self._kept = sorted(self._kept, key=lambda each: each[0]), []  # some were under way when it was cut
        for number, deliver in kept:
            self._send(number, deliver)
