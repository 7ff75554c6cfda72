"""The folder of a run's records, which outlives the run.

By default that is $XDG_STATE_HOME/edriver/RUN_ID (XDG Base Directory Specification 0.8), of which the latest are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edriver.system.private_files import make_private

RUN_FILE, EVENTS_FILE, TRACE_FILE, FAILURE_FILE = "run.json", "events.jsonl", "trace.json", "failure.txt"
"""The files in it: what was run; what happened, and how training progressed; a trace for Perfetto; the failure."""

USAGE_FILE = "usage.jsonl"
"""And what its hosts used over time."""

OUTPUT_FOLDER: Final = "output"
"""And the folder with the output of its workers."""

JOURNAL_FILE: Final = "journal.sqlite3"
"""And, while it lasts, what another driver could take it over from."""

LEASE_FILE: Final = "journal.lease"
"""Says which driver has it."""

JOURNAL_FILES: Final = (*(f"{JOURNAL_FILE}{ending}" for ending in ("-shm", "-wal", "")), LEASE_FILE)
"""Both, and the files that SQLite puts beside them."""

MAX_KEPT_RUNS: Final = 100
"""Runs that are kept in the default folder."""

MIN_REMOVAL_AGE: Final = 24 * 3600.0
"""Seconds since its last writing for which a run's records are not removed, however many there are."""

_RUN_ID_PATTERN: Final = re.compile(r"[0-9a-f]{8}")
_OUTPUT_PATTERN: Final = re.compile(r"worker\.[0-9]+\.log(\.1)?")


def is_run_id(text: str) -> bool:
    """Whether a text has the form of a run's id."""
    return _RUN_ID_PATTERN.fullmatch(text) is not None


def default_root(environ: Mapping[str, str]) -> Path:
    """The folder in which each run has one, if the operator does not name another.

    Raises:
        RuntimeError: this user's home directory is not known.
    """
    state = environ.get("XDG_STATE_HOME", "")
    # "All paths set in these environment variables must be absolute": one that is not is to be ignored.
    return (Path(state) if Path(state).is_absolute() else Path.home() / ".local/state") / "edriver"


def make(root: Path, run_id: str) -> Path:
    """Make a run's folder, for this user alone, and missing parent folders.

    Raises:
        OSError: that cannot be done.
    """
    folder = root / run_id
    make_private(root)
    folder.mkdir(mode=0o700)
    return folder


def recorded_names(root: Path) -> dict[str, str]:
    """The names of the runs with records in a folder, by run_id, the latest run first; empty: it has none.

    Records that cannot be read are passed over.
    """
    found: list[tuple[str, str, str]] = []
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            if is_run_id(folder.name):
                with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
                    run = json.loads((folder / RUN_FILE).read_bytes())
                    found.append((str(run["start_time"]), folder.name, str(run.get("name") or "")))
    return {run_id: name for _, run_id, name in sorted(found, reverse=True)}


def called(named: str, names: Mapping[str, str]) -> list[str]:
    """The runs that are meant: the one with this ID or, if there is none, those with this name, in their order.

    Args:
        named: an ID or a name.
        names: the names of all runs, by run_id.
    """
    return [named] if named in names else [run_id for run_id, name in names.items() if name == named]


def has_journal(folder: Path) -> bool:
    """Whether a run can be taken over from its folder: its end, which removes the journal, has not come."""
    return (folder / JOURNAL_FILE).is_file()


def remove_old(root: Path, now: float, kept: int = MAX_KEPT_RUNS) -> list[Path]:
    """Remove the folders of all but the latest runs; returns those that were.

    Only what is evidently a run's goes: named by its run_id, with a run.json that says the same, no other file but its
    own, and nothing written for MIN_REMOVAL_AGE. So a folder into which its user has put something stays.

    Args:
        root: the folder in which each run has one.
        now: seconds since the epoch.
        kept: how many stay.
    """
    found = []
    with contextlib.suppress(OSError):
        found = [(written, folder) for folder in root.iterdir() if (written := _last_writing(folder)) is not None]
    removed = []
    for written, folder in sorted(found, reverse=True)[kept:]:
        if now - written > MIN_REMOVAL_AGE and _is_evidently_ours(folder):
            with contextlib.suppress(OSError):
                # What identifies it is removed last: if this is interrupted, the next run continues it.
                for entry in _output_files(folder):
                    entry.unlink()
                with contextlib.suppress(FileNotFoundError):
                    (folder / OUTPUT_FOLDER).rmdir()
                for name in (*JOURNAL_FILES, FAILURE_FILE, TRACE_FILE, USAGE_FILE, EVENTS_FILE, RUN_FILE):
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()
                removed.append(folder)
    return removed


def _last_writing(folder: Path) -> float | None:
    """When something was last written to a folder that looks like a run's; None: it does not."""
    if not _RUN_ID_PATTERN.fullmatch(folder.name):
        return None
    for name in (EVENTS_FILE, RUN_FILE):  # a run of which no event was ever written has the latter only
        with contextlib.suppress(OSError):
            return (folder / name).lstat().st_mtime
    return None


def _output_files(folder: Path) -> list[Path]:
    """What is in the folder with the workers' output, if there is one; no link is followed.

    Raises:
        OSError: it is no folder, or cannot be read.
    """
    output = folder / OUTPUT_FOLDER
    try:
        if not stat.S_ISDIR(output.lstat().st_mode):
            raise NotADirectoryError(output)
    except FileNotFoundError:
        return []
    return list(output.iterdir())


def _is_evidently_ours(folder: Path) -> bool:
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode) or folder.stat().st_uid != os.getuid():
            return False
        own = {RUN_FILE, EVENTS_FILE, TRACE_FILE, FAILURE_FILE, USAGE_FILE, OUTPUT_FOLDER, *JOURNAL_FILES}
        if not {entry.name for entry in folder.iterdir()} <= own:
            return False
        if not all(_OUTPUT_PATTERN.fullmatch(entry.name) for entry in _output_files(folder)):
            return False
        about = json.loads((folder / RUN_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("run_id") == folder.name
