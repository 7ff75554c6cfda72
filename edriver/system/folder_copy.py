"""Copies a folder by many threads: on a shared file system most of the time goes into waiting for each small file."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

THREADS: Final = 32
"""Files that are copied at a time."""

CHUNK_BYTES: Final = 8 << 20
"""Bytes that are copied between two looks whether to stop."""


class CopyStoppedError(Exception):
    """The copy was stopped before it was complete."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied.

    Attributes:
        files: the number of files.
        bytes: what is in them.
    """

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Folder:
    source: Path
    copy: Path


@dataclass(frozen=True, slots=True)
class _File:
    source: Path
    copy: Path
    about: os.stat_result


def free_bytes(folder: Path) -> int:
    """How much this user may still write to the file system of a folder."""
    return shutil.disk_usage(folder).free


def copy_folder(
    source: Path, target: Path, stopped: threading.Event, free: Callable[[Path], int] = free_bytes
) -> Copied:
    """Copy all that is in a folder. Files keep the time of their last change, by which __pycache__ stays valid.

    A symbolic link stays one: if it leads into the folder, to the same place of the copy; else to where it led.
    Sockets, pipes and devices are left out. What is copied belongs to this user, who may change it, whatever the
    original's mode.

    Args:
        source: the folder.
        target: an empty folder.
        stopped: set to stop.
        free: how many bytes there is room for, in a folder.

    Raises:
        OSError: something cannot be read or written, or there is not room for all.
        CopyStoppedError: it was stopped.
    """
    source = source.resolve()
    with _threads() as pool:
        files: list[_File] = []
        level = [_Folder(source, target)]
        while level:
            found = list(pool.map(lambda folder: _make(folder, source, target, stopped), level))
            files += [file for _, some in found for file in some]
            level = [folder for some, _ in found for folder in some]
        needed, room = sum(file.about.st_size for file in files), free(target)
        if needed > room:
            raise OSError(f"it takes {needed / 1e6:,.0f} MB, and {room / 1e6:,.0f} MB are free")
        for _ in pool.map(lambda file: _copy(file, stopped), files):
            pass
    return Copied(len(files), needed)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(THREADS, "copy")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _make(folder: _Folder, source: Path, target: Path, stopped: threading.Event) -> tuple[list[_Folder], list[_File]]:
    """Make the links and folders that are in a folder; returns the folders and files there.

    Args:
        folder: the folder.
        source: what is copied,
        target: and where to, as a whole.
        stopped: set to stop.
    """
    if stopped.is_set():
        raise CopyStoppedError
    folders, files = [], []
    with os.scandir(folder.source) as entries:
        for entry in entries:
            original, copy = Path(entry.path), folder.copy / entry.name
            if entry.is_symlink():
                copy.symlink_to(_named_by_copy(original, source, target))
            elif entry.is_dir():
                copy.mkdir(0o700)
                folders.append(_Folder(original, copy))
            elif entry.is_file():
                files.append(_File(original, copy, entry.stat()))
    return folders, files


def _named_by_copy(link: Path, source: Path, target: Path) -> Path:
    """What the copy of a link names."""
    named = link.readlink()
    place = (link.parent / named).parent.resolve()  # not the link's end: another link may be meant
    leads_to = place if named.name in ("", "..") else place / named.name
    if not leads_to.is_relative_to(source):
        return named if named.is_absolute() else leads_to
    return target / leads_to.relative_to(source) if named.is_absolute() else named


def _copy(file: _File, stopped: threading.Event) -> None:
    try:
        descriptor = os.open(file.source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # removed since: a module that is just being compiled has such files
    with os.fdopen(descriptor, "rb") as source, file.copy.open("xb") as copy:
        while True:
            if stopped.is_set():
                raise CopyStoppedError
            if not os.sendfile(copy.fileno(), source.fileno(), None, CHUNK_BYTES):
                break
        os.fchmod(copy.fileno(), stat.S_IMODE(file.about.st_mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
        os.utime(copy.fileno(), ns=(file.about.st_atime_ns, file.about.st_mtime_ns))
