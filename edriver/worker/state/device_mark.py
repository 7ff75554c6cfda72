"""How far the device's work has progressed: on CUDA the host runs ahead, so a counted step may not be complete yet.

When a peer is lost, the collectives on the device are aborted, which leaves garbage in their tensors, and whatever was
queued behind them computes with it. So a boundary is worth something only if the device had reached it before that.
An optimizer's step begins only once the device has the gradients (TorchState), so nothing that a boundary needs waits
for a peer, but for collectives that a script has between the two: the device is given a moment to come to it.

Without a bound, the host would have asked for an optimizer's step with what an abort has left of the gradients, and all
would go back to their last commit (45 steps, in the first run that was measured). The device has 0.2 s to come to the
mark when a peer is lost. A collective of the script's own between the step and the boundary is as everywhere: a failure
there leads back to the last commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

JUDGEMENT_BOUND: Final = 0.2
"""Seconds that a device has for the rest of an optimizer's step, once a peer is lost. The recovery waits as long."""

_LOOK_INTERVAL: Final = 0.001


class Event(Protocol):
    """A torch.cuda.Event that has been recorded."""

    def record(self) -> None:
        """Put it behind all that the device has been asked for."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def synchronize(self) -> None:
        """Wait until it has."""


class DeviceMark:
    """The last boundary's place in the device's work.

    Args:
        record: records an event behind all work submitted to the device; returns None without a device to wait for.
        clock: a monotonic clock, in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        record: Callable[[], Event | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._record = record
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._event: Event | None = None
        self._verdict: bool | None = None

    def set(self) -> None:
        """A boundary is passed."""
        event = self._record()
        with self._lock:
            self._event, self._verdict = event, None

    def judge(self) -> None:
        """A peer is lost, and nothing has been aborted yet: note whether the device comes to the boundary in time."""
        deadline = self._clock() + JUDGEMENT_BOUND
        while (event := self._event) is not None and not event.query() and self._clock() < deadline:
            self._sleep(_LOOK_INTERVAL)
        with self._lock:
            if self._verdict is None:
                self._verdict = self._event is None or self._event.query()

    @property
    def reached(self) -> bool:
        """Whether the device had reached the last boundary when a peer was lost; if none was, whether it has."""
        with self._lock:
            if self._verdict is not None:
                return self._verdict
            return self._event is None or self._event.query()

    def wait(self) -> bool:
        """Wait for all work submitted to the device; returns whether there is a device."""
        event = self._record()
        if event is not None:
            event.synchronize()
        return event is not None
