"""The names that users give their runs, each a small file with the ID of the latest run of that name.

A run's driver keeps its file locked, so that the same command line starts the run and, after its driver has gone,
resumes it.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from edriver.system.private_files import OwnFolder, make_private
from edriver.system.record_folder import is_run_id

NAMES_FOLDER: Final = "by-name"
"""Where they are, among the folders of the runs' records."""

_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunNameTakenError(Exception):
    """Another process has the name."""


def check_run_name(name: str) -> str:
    """The name, if a run may have it.

    Raises:
        ValueError: it cannot be the name of a file.
    """
    if not _PATTERN.fullmatch(name):
        raise ValueError(
            f"{name!a} is not a name for a run: give up to 100 letters, digits, '.', '-' and '_', with no '.' first"
        )
    return name


class RunName:
    """The name of a run, held until this process ends, so that two drivers never have it at the same time.

    Args:
        root: the folder in which each run has a folder for its records.
        name: see `check_run_name`.

    Attributes:
        root: as given.

    Raises:
        RunNameTakenError: another process holds the name.
        NotOwnError: another account can change what it leads to.
        OSError: the file cannot be opened or locked.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        folder = root / NAMES_FOLDER
        make_private(folder)
        with OwnFolder(folder) as own:
            self._descriptor = own.open(name)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise RunNameTakenError(f"run {name} already has a driver: it holds {folder / name}") from None

    @property
    def run_id(self) -> str:
        """The latest run of this name; empty before the first run."""
        found = os.pread(self._descriptor, 100, 0).decode(errors="replace").strip()
        return found if is_run_id(found) else ""

    def give_to(self, run_id: str) -> None:
        """This run has the name from now on.

        Raises:
            OSError: that cannot be written.
        """
        os.pwrite(self._descriptor, f"{run_id}\n".encode(), 0)
        os.ftruncate(self._descriptor, len(run_id) + 1)
        os.fsync(self._descriptor)
