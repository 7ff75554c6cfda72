"""How a call reaches the workers and their results come back: parcels, which are pickles.

Where all workers are on this machine they are files in a folder that only its user can enter; else exchange.py's.
"""

from __future__ import annotations

import os
import pickle
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import cloudpickle

from edriver.system.private_files import open_private

FOLDER_VARIABLE: Final = "EDRIVER_CALL"
"""The variable that names the folder to the workers."""

MAX_PARCEL_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of a call, and of each result."""

CALL: Final = "call"
"""The name of the call's parcel; all others are outcomes."""


class ParcelError(Exception):
    """A function, its arguments or a result cannot be sent between caller and workers; the message says why."""

    __module__ = "edriver"  # callers import it from there, so a traceback should name that


@dataclass(frozen=True, slots=True)
class PickledCall:
    """A function call to send.

    Attributes:
        path: the caller's sys.path, because functions of importable modules are sent by name.
        pickled: function, arguments and keyword arguments.
    """

    path: list[str]
    pickled: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the call in one worker.

    Attributes:
        rank: the worker's last rank.
        pickled: the result, or the exception; empty if it cannot be pickled.
        error: the traceback of the exception, as text; empty if the call returned.
    """

    rank: int
    pickled: bytes
    error: str = ""


def pack(value: Any, what: str) -> bytes:
    """Pickle a value, with the functions and classes of `__main__` by value.

    Raises:
        ParcelError: the value cannot be pickled, or is too large.
    """
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise ParcelError(f"{what} cannot be pickled: {type(error).__name__}: {error}") from error
    if len(data) > MAX_PARCEL_BYTES:
        raise ParcelError(
            f"{what} takes {len(data)} bytes: at most {MAX_PARCEL_BYTES} are allowed; pass the path of a file"
        )
    return data


def dump(parcel: PickledCall | Outcome) -> bytes:
    """Serialize a parcel; `unpack` reads it."""
    return pickle.dumps(parcel)


def unpack(data: bytes) -> Any:
    """Return the value that was packed."""
    return pickle.loads(data)  # noqa: S301  from a place that only this run can write to


class ParcelStore(Protocol):
    """Stores parcels by name."""

    def put(self, name: str, data: bytes) -> None:
        """Store a parcel."""

    def get(self, name: str) -> bytes:
        """Return a parcel that was stored."""

    def names(self) -> list[str]:
        """The names of the stored parcels, in the order in which they were stored."""


class FolderParcelStore:
    """Stores the parcels of this machine's workers as files in a folder.

    Args:
        folder: a folder that only this user can access.

    Raises:
        ParcelError: others can access the folder.
        OSError: the folder does not exist.
    """

    def __init__(self, folder: Path) -> None:
        found = folder.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ParcelError(f"{folder} is open to other users: nothing in it is used")
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        """Store a parcel atomically.

        Raises:
            OSError: the file cannot be written.
        """
        part = self._folder / f"{name}.{os.getpid()}.part"
        with os.fdopen(open_private(part, os.O_TRUNC), "wb") as file:
            file.write(data)
        part.replace(self._folder / name)

    def get(self, name: str) -> bytes:
        """See ParcelStore.

        Raises:
            OSError: the file cannot be read.
        """
        return (self._folder / name).read_bytes()

    def names(self) -> list[str]:
        """See ParcelStore."""
        files = [path for path in self._folder.iterdir() if path.suffix != ".part"]
        return [path.name for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)]


def outcomes(place: ParcelStore) -> list[Outcome]:
    """The outcomes so far, by rank; if two workers had a rank one after the other, that of the later one."""
    found = [unpack(place.get(name)) for name in place.names() if name != CALL]
    return sorted({outcome.rank: outcome for outcome in found}.values(), key=lambda outcome: outcome.rank)
