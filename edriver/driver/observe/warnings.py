"""What has impaired a run or its records although training continued, for observers. Decides nothing.

Hosts that come and go, output that is left out, records or a journal that cannot be written, a driver that stood still,
a clock that was set. Each kind is an event when it is noticed, for each host where it concerns one, and again after
REPEAT_INTERVAL. The status has the latest, with how often each has happened.
"""

from __future__ import annotations

import time
from typing import Final

from edriver.driver.observe.cause_text import cause_with_text
from edriver.model.cause import Cause, CauseKind
from edriver.model.events import SourceFile, SourcesLoaded
from edriver.v1 import status_pb2
from edriver.wire.conversion import timestamp

MAX_WARNINGS: Final = 16
"""Warnings that are remembered, the latest."""

REPEAT_INTERVAL: Final = 600.0
"""Seconds after which something that still happens is reported again."""

MAX_FILES: Final = 2000
"""Most source files that are remembered, and most that are said to differ."""

MAX_NAMES: Final = 3
"""Files that a text names."""


class Warnings:
    """Remembers each kind once, or once a host, and how often it has happened.

    Attributes:
        sources: the source that the workers run.
    """

    def __init__(self) -> None:
        """Begin without warnings."""
        self.sources = Sources()
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
        """What this kind warns of is over: it is not shown any more."""
        self._found = {key: warning for key, warning in self._found.items() if key[0] is not kind}

    def messages(self) -> list[status_pb2.Warning]:
        """All that are remembered, the latest last."""
        return list(self._found.values())


class Sources:
    """Remembers the files that a run began with: of each the first content that a worker has loaded."""

    def __init__(self) -> None:
        self._first: dict[str, bytes] = {}
        self._said: set[tuple[str, bytes]] = set()

    def differing(self, loaded: SourcesLoaded) -> str:
        """Which of a worker's files differ, and when they were changed, each content once; empty: none do.

        New files are remembered.
        """
        changed: list[SourceFile] = []
        for file in loaded.files:
            first = self._first.get(file.name)
            if first is None and len(self._first) < MAX_FILES:
                self._first[file.name] = file.digest
            elif first is not None and first != file.digest and (file.name, file.digest) not in self._said:
                changed.append(file)
        changed = changed[: MAX_FILES - len(self._said)]
        self._said.update((file.name, file.digest) for file in changed)
        changed.sort(key=lambda file: file.modified, reverse=True)
        named = [f"{file.name} (changed at {_time_text(file.modified)})" for file in changed[:MAX_NAMES]]
        more = [f"{len(changed) - MAX_NAMES} more"] if len(changed) > MAX_NAMES else []
        return ", ".join(named + more)


def _time_text(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):  # a file may have any time
        return "an unknown time"
