"""What has impaired a run or its records although training went on, for observers. Decides nothing."""

from __future__ import annotations

from typing import Final

from edriver.common.wire import timestamp
from edriver.driver.core.cause import Cause, CauseKind
from edriver.driver.observe.cause_message import cause_with_text
from edriver.v1 import status_pb2

MAX_WARNINGS: Final = 16
"""Warnings that are remembered, the latest."""

REPEAT_INTERVAL: Final = 600.0
"""Seconds after which something that still happens is reported again."""


class Warnings:
    """Remembers each kind once, or once a host, and how often it has happened."""

    def __init__(self) -> None:
        """There is none yet."""
        self._found: dict[tuple[CauseKind, str | None], status_pb2.Warning] = {}
        self._reported: dict[tuple[CauseKind, str | None], float] = {}

    def add(self, cause: Cause, now: float) -> bool:
        """Note that something has happened; returns whether it is to be reported: at first, and after a long time.

        Args:
            cause: what it is.
            now: the time, in seconds since the epoch.
        """
        key = cause.kind, cause.host
        warning = self._found.pop(key, None) or status_pb2.Warning(first_time=timestamp(now))
        self._found[key] = warning  # the latest is the last
        warning.count += 1
        warning.last_time.CopyFrom(timestamp(now))
        warning.cause.CopyFrom(cause_with_text(cause))
        if len(self._found) > MAX_WARNINGS:
            oldest = next(iter(self._found))
            del self._found[oldest]
            self._reported.pop(oldest, None)
        if now - self._reported.get(key, -REPEAT_INTERVAL) < REPEAT_INTERVAL:
            return False
        self._reported[key] = now
        return True

    def withdraw(self, kind: CauseKind) -> None:
        """This goes on no longer, and is not shown any more."""
        self._found = {key: warning for key, warning in self._found.items() if key[0] is not kind}

    def messages(self) -> list[status_pb2.Warning]:
        """All that are remembered, the latest last."""
        return list(self._found.values())
