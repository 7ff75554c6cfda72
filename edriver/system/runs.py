"""Where this machine's runs are found: each has a folder that only its user can enter, with its driver's socket and, if
its user has named it, its name.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edriver.system.leftovers import FOLDER_PREFIX, own_folders
from edriver.system.leftovers import SHORT_TEMP_FOLDER as _SHORT

SOCKET_NAME: Final = "driver.sock"

NAME_FILE: Final = "name"

RUN_FOLDER_VARIABLE: Final = "EDRIVER_RUN_FOLDER"
"""The variable by which a driver's guard knows what the driver has started, ssh and discovery's script, and what these
have; not the agents: they end on their own when the driver is silent, and all that is theirs with them."""

_PEER_CREDENTIALS: Final = struct.Struct("3i")
"""What SO_PEERCRED answers: process, user, group."""

_MAX_PATH_BYTES: Final = 60  # of the 107 bytes that a socket's path may have: the rest is for the agents' folders


def folder_of(run_id: str) -> Path:
    """Where a run's folder is to be made: a path that does not exist yet, and that is short enough for sockets in
    it.
    """
    name = f"{FOLDER_PREFIX}{run_id}-{secrets.token_hex(4)}"
    usual = Path(tempfile.gettempdir(), name)
    return usual if len(str(usual)) <= _MAX_PATH_BYTES else Path(_SHORT, name)


def living_runs() -> dict[str, Path]:
    """The sockets of this user's runs on this machine whose driver answers, by run_id.

    Others can make folders and sockets in the same place. A run counts only if the folder itself, not what a link leads
    to, is this user's and closed to others, and if the process that listens at its socket is this user's.
    """
    found = {}
    for place in dict.fromkeys((tempfile.gettempdir(), _SHORT)):
        for folder in own_folders(Path(place)):
            run_id = folder.name.removeprefix(FOLDER_PREFIX).rpartition("-")[0]
            if run_id and _is_private(folder) and _answers(folder / SOCKET_NAME):
                found[run_id] = folder / SOCKET_NAME
    return found


def keep_name(folder: Path, name: str) -> None:
    """Write a run's name into its folder, from which `living_names` reads it.

    Args:
        folder: the run's folder.
        name: its name.

    Raises:
        OSError: that cannot be done.
    """
    (folder / NAME_FILE).write_text(name, encoding="utf-8", errors="surrogateescape")


def living_names(runs: Mapping[str, Path]) -> dict[str, str]:
    """The names of the runs that `living_runs` has found, by run_id; empty: it has none."""
    return {run_id: _name_in(driver_socket.parent) for run_id, driver_socket in runs.items()}


def _name_in(folder: Path) -> str:
    try:
        return (folder / NAME_FILE).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(1.0)
            caller.connect(str(path))
            _, user, _ = _PEER_CREDENTIALS.unpack(
                caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
            )
    except OSError:
        return False
    return bool(user == os.getuid())
