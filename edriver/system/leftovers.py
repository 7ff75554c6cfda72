"""What a run leaves when it and its guards are killed at once; the next run of the same user removes it.

Each folder of a driver or an agent has a lock, which the kernel frees when the process that holds it has ended, however
it ended. So a folder whose lock is free is a leftover, and so is each process that has its path as a mark in its
environment. Folders without a lock, and those of other users, are left alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.system import guard_main

FOLDER_PREFIX: Final = "edriver-"
"""How the names of all our folders begin."""

LOCK_NAME: Final = "lock"

SHORT_TEMP_FOLDER: Final = "/tmp"  # noqa: S108  where TMPDIR is too long; what is made there is for this user alone

AGENT_FOLDERS: Final = "agent-*"
"""The folders of a run's agents on the driver's machine, within the run's own."""

FOLDER_VARIABLES: Final = ("EDRIVER_RUN_FOLDER", "EDRIVER_READY")
"""The variables by which processes belong to a folder, its path or one in it: of a driver's, and of an agent's."""

MAX_KILL_ROUNDS, KILL_INTERVAL = 20, 0.02
"""How often marked processes are looked for, at most, and the seconds between two looks: the killed may be forking."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What was removed.

    Attributes:
        folder: the folder.
        processes: how many processes were killed.
    """

    folder: Path
    processes: int

    def __str__(self) -> str:
        """One line, for the operator."""
        killed = f" and {self.processes} of its processes" if self.processes else ""
        return f"removed {self.folder}{killed}, left by a run that was killed together with its guards"


def hold(folder: Path) -> int:
    """Lock a folder of this process's own, until the process ends; returns the lock's descriptor, to be kept open.

    Where the file system has no locks the folder gets none, and is never taken for a leftover.

    Raises:
        OSError: the file of the lock cannot be made.
    """
    fresh = folder / f"{LOCK_NAME}.new"
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fresh.rename(folder / LOCK_NAME)  # already locked when it gets its name
    return descriptor


def temp_folders() -> list[Path]:
    """Where this user's folders are made."""
    return [Path(place) for place in dict.fromkeys((tempfile.gettempdir(), SHORT_TEMP_FOLDER))]


def own_folders(place: Path) -> list[Path]:
    """The folders of this user's in one for temporary files that are named as ours, sorted.

    Others can make some of such names there, as many as they like and with as much in them: these are not looked into.
    """
    found = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with suppress(OSError):  # it has just been removed
                if entry.name.startswith(FOLDER_PREFIX):
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                        found.append(place / entry.name)
    return sorted(found)


def remove_leftovers(where: Sequence[Path] | None = None, environ: Mapping[str, str] = os.environ) -> list[Leftover]:
    """Remove all leftovers of this user, and kill the processes that belong to them.

    Args:
        where: the folders in which to look; None: where this user's are made.
        environ: this process's environment: a leftover to which it belongs itself is left alone.
    """
    found = []
    for place in temp_folders() if where is None else where:
        for folder in own_folders(place):
            with suppress(OSError), _abandoned(folder):
                if not any(_is_within(environ.get(mark, ""), folder) for mark in FOLDER_VARIABLES):
                    found.append(Leftover(folder, _kill(folder)))
                    shutil.rmtree(folder, ignore_errors=True)
    return found


@contextmanager
def _abandoned(folder: Path) -> Iterator[None]:
    """Hold the locks of a folder of this user's, which are free.

    Raises:
        OSError: the folder is not of this kind, or is in use.
    """
    descriptors: list[int] = []
    try:
        for lock in (folder / LOCK_NAME, *folder.glob(f"{AGENT_FOLDERS}/{LOCK_NAME}")):
            descriptors.append(os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _is_within(path: str, folder: Path) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")


def _kill(folder: Path) -> int:
    patterns = [os.fsencode(f"{mark}={folder}{end}") for mark in FOLDER_VARIABLES for end in ("\0", "/")]
    killed = 0
    for _ in range(MAX_KILL_ROUNDS):
        there = sum(guard_main.kill_marked(pattern, user=os.getuid()) for pattern in patterns)
        killed = max(killed, there)
        if not there:
            break
        time.sleep(KILL_INTERVAL)
    return killed
