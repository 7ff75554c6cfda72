"""Runs that are opened from their records: the page with all of it, and what is drawn where several are compared."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from edriver.dashboard.known_runs import KnownRuns
from edriver.dashboard.report import RecordedRun, page_data, recorded_run, script_safe, summary
from edriver.history.records import Records, UnreadableLine, read

MAX_KEPT_RECORDS: Final = 8
"""Runs that are kept as they were read, those that were asked for last."""

CURVE_PARTS: Final = ("whole", "link", "why", "time", "version", "head", "rounds", "interruptions", "curve")
"""What is drawn of each run where several are compared."""


class RecordPages:
    """Reads records, one run at a time, beside the event loop.

    Args:
        runs: finds them.
    """

    def __init__(self, runs: KnownRuns) -> None:
        self._runs = runs
        self._lock = asyncio.Lock()
        self._kept: dict[str, tuple[tuple[int, int], tuple[str, str], dict[str, Any]]] = {}

    async def check(self, run_id: str) -> None:
        """Whether there is something to read, which takes no time, other than reading it.

        Raises:
            RecordError: the run has no records, or they contain no event.
            OSError: they cannot be read.
        """
        await asyncio.to_thread(lambda: _check(self._runs.records(run_id)))

    async def page(self, run_id: str) -> tuple[str, str]:
        """What can be read without a script, as HTML, and all data, as an element that holds it.

        Raises:
            RecordError: the run has no records, or they contain no event.
            OSError: they cannot be read.
        """
        return (await self._of(run_id))[1]

    async def curves(self, run_id: str) -> dict[str, Any]:
        """The parts of its data that are drawn where several runs are compared.

        Raises:
            RecordError: the run has no records, or they contain no event.
            OSError: they cannot be read.
        """
        return (await self._of(run_id))[2]

    async def _of(self, run_id: str) -> tuple[tuple[int, int], tuple[str, str], dict[str, Any]]:
        async with self._lock:
            records = await asyncio.to_thread(self._runs.records, run_id)
            found = records.events.stat()
            kept = self._kept.pop(run_id, None)
            version = (found.st_mtime_ns, found.st_size)
            if kept is None or kept[0] != version:
                kept = version, *await asyncio.to_thread(_read, records, run_id)
            self._kept[run_id] = kept
            if len(self._kept) > MAX_KEPT_RECORDS:
                del self._kept[next(iter(self._kept))]
            return kept


def _check(records: Records) -> None:
    if all(isinstance(entry, UnreadableLine) for entry in read(records.events)):
        recorded_run(records)  # raises an error that says why


def _read(records: Records, run_id: str) -> tuple[tuple[str, str], dict[str, Any]]:
    recorded: RecordedRun = recorded_run(records)
    data = page_data(recorded, run_id)
    element = f'<script type="application/json" id="data">{script_safe(data)}</script>'
    return (summary(recorded, run_id), element), curve_parts(data)


def curve_parts(data: dict[str, Any]) -> dict[str, Any]:
    """Of a message to the page, what is drawn where several runs are compared."""
    return {part: data[part] for part in CURVE_PARTS if part in data}
