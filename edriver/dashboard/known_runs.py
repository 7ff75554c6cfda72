"""This user's runs on this machine: those in progress, and those with records. For `edriver runs` and for the page."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from edriver.client import Client, RunError, here, living_runs
from edriver.history.records import RecordError, Records, records_of
from edriver.history.run_list import RunSummary, living_summary, recorded_runs
from edriver.system.record_folder import (
    EVENTS_FILE,
    FAILURE_FILE,
    OUTPUT_FOLDER,
    RUN_FILE,
    called,
    default_root,
    is_run_id,
    recorded_names,
)

ANSWER_TIMEOUT: Final = 3.0
"""Seconds that a run's driver may take to answer."""


class KnownRuns:
    """Looks for them again each time it is asked.

    Args:
        root: the folder of the records; None: the default.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    def all(self) -> list[RunSummary]:
        """All, the latest first.

        Raises:
            RunError: the records cannot be read.
        """
        living = frozenset(living_runs())
        answers = {each.run_id: each for each in _those_that_answer(living)}
        try:
            root = self._folder()
            recorded = recorded_runs(root, living) if self._root is not None or root.is_dir() else []
        except OSError as error:
            raise RunError(f"{error.filename}: {error.strerror}") from None
        known = {each.run_id: each for each in recorded}
        for run_id, answer in answers.items():
            commit = known[run_id].commit if run_id in known else ""
            known[run_id] = dataclasses.replace(answer, commit=commit)
        return sorted(known.values(), key=lambda each: -each.start)

    def records(self, run_id: str) -> Records:
        """A run's records.

        Raises:
            RecordError: the run has no records, or they lead out of the folder of the records.
        """
        try:
            root = self._folder().resolve()
            folder = root / run_id
            files = [folder / name for name in (RUN_FILE, EVENTS_FILE, FAILURE_FILE, OUTPUT_FOLDER)]
            if is_run_id(run_id) and folder.is_dir() and all(file.resolve() == file for file in files):
                return records_of(str(folder))
        except (OSError, RuntimeError, RunError):  # a link that leads in a circle, no folder at all
            pass
        raise RecordError(f"there are no records of a run {run_id}")

    def id_of(self, named: str) -> str:
        """The ID of the latest run with records of this name; what is no run's name is returned as it is.

        Raises:
            RunError: there is no folder of the records.
        """
        return next(iter(called(named, recorded_names(self._folder()))), named)

    def _folder(self) -> Path:
        if self._root is not None:
            return self._root
        try:
            return default_root(os.environ)
        except RuntimeError as error:
            raise RunError(str(error)) from None


def _those_that_answer(living: Iterable[str]) -> Iterator[RunSummary]:
    for run_id in living:
        with contextlib.suppress(RunError), Client(here(run_id), timeout=ANSWER_TIMEOUT) as client:
            yield living_summary(client.status())
