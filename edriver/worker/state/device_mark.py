"""How far the device's work has progressed: on CUDA the host runs ahead, so a counted step may not be complete yet.

When a peer is lost, the collectives on the device are aborted, which leaves garbage in their tensors, and whatever was
queued behind them computes with it. So a boundary is worth something only if the device had reached it before that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


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
        record: puts an event behind all that the device has been asked for; None: there is no device to wait for.
    """

    def __init__(self, record: Callable[[], Event | None]) -> None:
        self._record = record
        self._lock = threading.Lock()
        self._event: Event | None = None
        self._verdict: bool | None = None

    def set(self) -> None:
        """A boundary is passed."""
        event = self._record()
        with self._lock:
            self._event, self._verdict = event, None

    def judge(self) -> None:
        """A peer is lost, and nothing has been aborted yet: note whether the device has reached the boundary."""
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
        """Wait for all that the device has been asked for; whether there is a device."""
        event = self._record()
        if event is not None:
            event.synchronize()
        return event is not None
