"""Where this machine's runs are found: each has a folder that only its user can enter, with its driver's socket."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "edriver-"
SOCKET: Final = "driver.sock"

MARK: Final = "EDRIVER_RUN_FOLDER"
"""The variable by which a driver's guard knows what the driver has started, ssh and discovery's script, and what these
have; not the agents: they end by themselves when the driver is silent, and all that is theirs with them."""

_SHORT: Final = "/tmp"  # noqa: S108  where TMPDIR is too long; what is made there is for this user alone
_PATH_LIMIT: Final = 60  # of the 107 bytes that a socket's path may have: the rest is for the agents' folders


def folder_of(run_id: str) -> Path:
    """Where a run's folder is to be made: a path that nobody has, and that is short enough for sockets in it."""
    name = f"{PREFIX}{run_id}-{secrets.token_hex(4)}"
    usual = Path(tempfile.gettempdir(), name)
    return usual if len(str(usual)) <= _PATH_LIMIT else Path(_SHORT, name)


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
