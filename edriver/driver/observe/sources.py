"""Whether all workers of a run have loaded the same source: one that differs is said, and decides nothing."""

from __future__ import annotations

import time
from typing import Final

from edriver.driver.core.events import SourceFile, SourcesLoaded

MAX_FILES: Final = 2000
"""Most files that are remembered, and most that are said to differ."""

MAX_NAMES: Final = 3
"""Files that a text names."""


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
