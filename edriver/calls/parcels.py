"""How a call reaches the workers and their results come back: parcels, which are pickles.

Where all workers are on this machine they are files in a folder that only its user can enter; else exchange.py's.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final, Protocol

import cloudpickle

from edriver.system.private_files import open_private
from edriver.text.phrases import function_name

EXCHANGE_VARIABLE: Final = "EDRIVER_CALL_EXCHANGE"
"""The variable that brings the address and credentials of a store on another machine to the workers."""

FOLDER_VARIABLE: Final = "EDRIVER_CALL"
"""The variable that names the folder to the workers."""

MAX_PARCEL_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of a call, and of each result."""

MAX_CALL_NAME_LENGTH: Final = 100
"""Characters of a call's name."""

CALL: Final = "call"
"""The name of the call's parcel; all others are outcomes."""


class ParcelError(Exception):
    """A function, its arguments or a result cannot be sent between caller and workers; the message says why."""

    __module__ = "edriver"  # callers import it from there, so a traceback should name that


@dataclass(frozen=True, slots=True)
class PickledCall:
    """A function call to send.

    Attributes:
        name: the function's name, for people.
        path: the caller's sys.path, because functions of importable modules are sent by name.
        pickled: function, arguments and keyword arguments.
        sources: the source text of the functions that are sent by value, by the file name in their tracebacks: a
            notebook's cell is no file, and a script need not exist on the worker's host.
    """

    name: str
    path: Sequence[str]
    pickled: bytes
    sources: Mapping[str, str]

    def show_sources(self) -> None:
        """Have this process's tracebacks show the lines of the functions that are sent by value."""
        for name, text in self.sources.items():
            # without a time of change the module takes it for a text that has no file, and keeps it
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


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
    return _pack(value, what)[0]


def pack_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], path: Sequence[str], what: str
) -> PickledCall:
    """Pickle a call as `pack` does, with what its tracebacks need in the workers.

    Args:
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        path: where its modules are looked for; relative entries are below the current folder.
        what: the call, for the error's message.

    Raises:
        ParcelError: it cannot be pickled, or is too large.
    """
    data, files = _pack((function, tuple(args), dict(kwargs)), what)
    sources = {name: text for name in sorted(files) if (text := "".join(linecache.getlines(name)))}
    name = function_name(function).rpartition("<locals>.")[2][:MAX_CALL_NAME_LENGTH]
    return PickledCall(name, [str(Path(entry).absolute()) for entry in path], data, sources)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps the file names of functions that are pickled by value: cloudpickle 3.1.3 replaces them by one for all.

    Attributes:
        files: these names, as tracebacks have them.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Called for each object that is pickled."""
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        self.files.add(obj.co_filename)
        make, args, *_ = self.dispatch_table[CodeType](obj)
        return _code_of_file, (obj.co_filename, make, args)


def _code_of_file(name: str, make: Callable[..., CodeType], args: Sequence[Any]) -> CodeType:
    return make(*args).replace(co_filename=name)


def _pack(value: Any, what: str) -> tuple[bytes, set[str]]:
    file = io.BytesIO()
    try:
        pickler = _Pickler(file)
        pickler.dump(value)
    except Exception as error:
        raise ParcelError(f"{what} cannot be pickled: {type(error).__name__}: {error}") from error
    data = file.getvalue()
    if len(data) > MAX_PARCEL_BYTES:
        raise ParcelError(
            f"{what} takes {len(data)} bytes: at most {MAX_PARCEL_BYTES} are allowed; pass the path of a file"
        )
    return data, pickler.files


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
        """The names of its parcels, the oldest first."""
        files = [path for path in self._folder.iterdir() if path.suffix != ".part"]
        return [path.name for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)]


def outcomes(place: ParcelStore) -> list[Outcome]:
    """The outcomes so far, by rank; if two workers had a rank one after the other, that of the later one."""
    found = [unpack(place.get(name)) for name in place.names() if name != CALL]
    return sorted({outcome.rank: outcome for outcome in found}.values(), key=lambda outcome: outcome.rank)
