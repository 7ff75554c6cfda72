"""Where this machine's runs are found: each has a folder that only its user can enter, with its driver's socket."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "edriver-"
SOCKET: Final = "driver.sock"
_SHORT: Final = "/tmp"  # noqa: S108  where TMPDIR is too long; what is made there is for this user alone
_PATH_LIMIT: Final = 60  # of the 107 bytes that a socket's path may have: the rest is for the agents' folders


def make_folder(run_id: str) -> Path:
    """A folder for a run, with a path short enough for sockets in it."""
    prefix = f"{PREFIX}{run_id}-"
    folder = tempfile.mkdtemp(prefix=prefix)
    if len(folder) > _PATH_LIMIT:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix=prefix, dir=_SHORT)
    return Path(folder)


def living_runs() -> dict[str, Path]:
    """The sockets of this user's runs on this machine whose driver answers, by run_id."""
    found = {}
    for place in dict.fromkeys((tempfile.gettempdir(), _SHORT)):
        for folder in sorted(Path(place).glob(f"{PREFIX}*-*")):
            run_id = folder.name.removeprefix(PREFIX).rpartition("-")[0]
            if run_id and _answers(folder / SOCKET):
                found[run_id] = folder / SOCKET
    return found


def _answers(path: Path) -> bool:
    try:
        if path.parent.stat().st_uid != os.getuid():
            return False
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(1.0)
            caller.connect(str(path))
    except OSError:
        return False
    return True
