"""A folder of checkpoints: a local path, or any URL that fsspec knows.

Each checkpoint has its own folder, `checkpoint-N`, in which `torch.distributed.checkpoint` has written its files.
The manifest comes last: fsync, then a rename. A checkpoint is whole if its manifest can be read and its files have the
lengths that it names; else it is torn, or still being written. Digests are compared by `damage` alone, because that
reads everything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import inspect
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any, Final

from edriver.checkpoint_folder.manifest import Manifest, ManifestError
from edriver.system.private_files import NotOwnError, OwnFolder, close_to_others, sync_folder

MANIFEST: Final = "manifest.json"
MAX_NOTE_BYTES: Final = 4000
"""Most bytes of a note, which is a small file beside the checkpoints, that are read."""

_NAME: Final = re.compile(r"checkpoint-(\d{6,18})")


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that is there.

    Attributes:
        name: of its folder.
        number: its place in the order in which they were begun.
        manifest: what it says of itself; None: that cannot be read.
        trouble: why it is torn; empty: it is whole.
        refused: why it is not loaded though it is whole: another account can have written it; empty: it may be.
    """

    name: str
    number: int
    manifest: Manifest | None
    trouble: str = ""
    refused: str = ""

    @property
    def whole(self) -> bool:
        """Whether all of it is there, as far as lengths tell."""
        return not self.trouble

    @property
    def steps(self) -> int:
        """Number of steps that it holds; -1: not known."""
        return -1 if self.manifest is None else self.manifest.steps


class CheckpointFolder:
    """The checkpoints in one place.

    Args:
        location: a path, or a URL such as s3://bucket/run.

    Raises:
        ImportError: what fsspec needs for this kind of URL is not installed; says what that is.
        ValueError: fsspec knows no such URL.
    """

    def __init__(self, location: str) -> None:
        from fsspec.core import url_to_fs  # 0.1 s, and few runs need it

        self.location = location
        self._fs: Any
        self._fs, self._root = url_to_fs(location)
        self.is_local = "file" in _protocols(self._fs)

    def place(self, name: str) -> str:
        """Where a checkpoint lies: a path where the folder is local, else a URL."""
        return str(Path(self._root) / name) if self.is_local else f"{self.location.rstrip('/')}/{name}"

    def found(self) -> list[Found]:
        """All checkpoints, the one with the most steps first; torn ones last.

        Raises:
            OSError: the folder cannot be read.
        """
        found = [self._look_at(name) for name in self._names()]
        return sorted(found, key=lambda f: (f.whole, f.steps, f.number), reverse=True)

    def newest(self) -> Found | None:
        """The complete checkpoint with the most steps, or None.

        One that is refused counts only where there is no other, so that loading it says why it is refused.

        Raises:
            OSError: the folder cannot be read.
        """
        whole = [found for found in self.found() if found.whole]
        return next((found for found in whole if not found.refused), whole[0] if whole else None)

    def unfinished(self) -> list[str]:
        """The names of those that have no manifest, in the order in which they were begun.

        Raises:
            OSError: the folder cannot be read.
        """
        return sorted((name for name in self._names() if MANIFEST not in self.files_of(name)), key=_number)

    def files_of(self, name: str) -> list[str]:
        """The names of a checkpoint's files; empty: it is not there.

        Raises:
            OSError: its folder cannot be read.
        """
        return self._listed(self._path(name))

    def begin(self) -> str:
        """Begin the next checkpoint; returns its name, which no other has.

        Raises:
            OSError: its folder cannot be made.
        """
        number = max((_number(name) for name in self._names()), default=0) + 1
        if not self.is_local:
            return f"checkpoint-{number:06}"
        while True:
            path = Path(self._root) / f"checkpoint-{number:06}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:  # of another process, which may have been stopped since it looked
                if not path.is_dir():
                    raise
                number += 1
            else:
                return path.name

    def damage(self, found: Found) -> str:
        """What in a whole checkpoint differs from its manifest, by the digests of its files; empty: nothing.

        Raises:
            OSError: a file cannot be read.
        """
        assert found.manifest is not None, "a whole checkpoint has one"
        for name, record in found.manifest.files.items():
            path = self._path(found.name, name)
            if self.is_local and Path(path).exists() and not Path(path).is_file():  # such as a pipe: it would wait
                return f"{name} is not a file"
            with self._fs.open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            if digest.hexdigest() != record.sha256:
                return f"the content of {name} has changed since it was written"
        return ""

    @contextlib.contextmanager
    def own(self, name: str) -> Iterator[str]:
        """Hold a checkpoint that no other account can have written; yields where it is meanwhile.

        In a local folder it belongs to this user or to root, and nobody else can write it. The folder with the
        checkpoints may be one that others share. Who can write to what a URL stands for, its server knows.

        Raises:
            NotOwnError: another account can have written it.
            OSError: it cannot be looked at.
        """
        if not self.is_local:
            yield self.place(name)
            return
        with OwnFolder(Path(self.place(name)), or_roots=True) as own:
            own.check_all()
            yield str(own.pinned)

    def seal(self, name: str, manifest: Manifest) -> None:
        """Write a checkpoint's manifest, with which it is whole.

        Raises:
            OSError: it cannot be written.
        """
        text = manifest.text().encode()
        if not self.is_local:
            self._fs.pipe_file(self._path(name, MANIFEST), text)  # there at once, or not at all
            return
        folder = Path(self._path(name))
        sync_folder(folder)  # the names of the files that the manifest names
        torn = folder / f"{MANIFEST}.torn"
        with torn.open("wb") as file:
            close_to_others(file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        torn.rename(folder / MANIFEST)
        sync_folder(folder)
        sync_folder(folder.parent)

    def prune(self, keep: int) -> None:
        """Remove all but so many whole checkpoints, those with the most steps; and torn ones that were begun before.

        The one that was written last stays, too, though others may have more steps: a run may have started again. Those
        that are refused stay, and do not count: another account that may make folders here could have all others
        removed.

        Args:
            keep: at least 1.

        Raises:
            OSError: one cannot be removed.
        """
        assert keep >= 1, "the newest one stays"
        there = self.found()
        whole = [found for found in there if found.whole and not found.refused]
        newest = max((found.number for found in whole), default=0)
        names = {found.name for found in whole[:keep]} | {found.name for found in whole if found.number == newest}
        names |= {found.name for found in there if found.refused}
        trouble: OSError | None = None
        for name in self._names():
            if name not in names and _number(name) < newest:
                try:
                    self.remove(name)
                except OSError as error:  # such as one of another account: the others are removed all the same
                    trouble = trouble or error
        if trouble is not None:
            raise trouble

    def condemn(self, name: str) -> None:
        """Make a checkpoint whose content is damaged a torn one, which does not count from now on.

        Raises:
            OSError: that cannot be written.
        """
        self._fs.mv(self._path(name, MANIFEST), self._path(name, f"{MANIFEST}.damaged"))

    def remove(self, name: str) -> None:
        """Remove a checkpoint, its manifest first: what is left if that is cut short is torn.

        Raises:
            OSError: it cannot be removed.
        """
        for path in (self._path(name, MANIFEST), self._path(name)):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(path, recursive=True)

    def names(self) -> list[str]:
        """The names of all that lies in the folder.

        Raises:
            OSError: it cannot be read.
        """
        return self._listed(self._root)

    def _listed(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            entries = self._fs.ls(path, detail=False)
        except FileNotFoundError:
            return []
        return [str(entry).rstrip("/").rpartition("/")[2] for entry in entries]

    def read_note(self, name: str) -> bytes | None:
        """A note; None: there is no such. What is not a regular file, such as a link or a pipe, counts as an empty one.

        Raises:
            OSError: it cannot be read.
        """
        path = self._path(name)
        try:
            if self.is_local:
                return _read(path, MAX_NOTE_BYTES, follow=False) or b""
            found: bytes = self._fs.cat_file(path, end=MAX_NOTE_BYTES)
        except FileNotFoundError:
            return None
        return found

    def create_note(self, name: str, content: bytes) -> bool:
        """Write a note that is new; False: it is there already.

        On a file system only one of several that try can do it; elsewhere if fsspec's class for it has such a write.

        Raises:
            OSError: it cannot be written.
        """
        path = self._path(name)
        self._fs.makedirs(self._root, exist_ok=True)
        try:
            if self.is_local:
                with Path(path).open("xb") as file:
                    _write_or_remove(file, content)
            elif "mode" in inspect.signature(self._fs.pipe_file).parameters:
                self._fs.pipe_file(path, content, mode="create")
            elif self._fs.exists(path):
                return False
            else:
                self._fs.pipe_file(path, content)
        except FileExistsError:
            return False
        return True

    def rewrite_note(self, name: str, content: bytes) -> None:
        """Write a note that is there already; one that was removed stays so where the folder is local.

        Raises:
            OSError: it cannot be written.
        """
        if not self.is_local:
            self._fs.pipe_file(self._path(name), content)
            return
        # In place: a full disk is no matter. No link is followed, which another account may have laid there.
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  a descriptor
            file.write(content)
            file.truncate()

    def remove_note(self, name: str) -> None:
        """Remove a note, if it is there.

        Raises:
            OSError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def _names(self) -> list[str]:
        return [name for name in self.names() if _NAME.fullmatch(name)]

    def _look_at(self, name: str) -> Found:
        number, path = _number(name), self._path(name, MANIFEST)
        try:
            text = _read(path, -1, follow=True) if self.is_local else self._fs.cat_file(path)
            if text is None:
                return Found(name, number, None, "its manifest is not a regular file")
            manifest = Manifest.of(text)
        except FileNotFoundError:
            return Found(name, number, None, "it has no manifest: it is still being written, or was never completed")
        except ManifestError as error:
            return Found(name, number, None, str(error))
        lengths = {
            str(entry["name"]).rpartition("/")[2]: entry["size"] for entry in self._fs.ls(self._path(name), detail=True)
        }
        for file, record in manifest.files.items():
            if file not in lengths:
                return Found(name, number, manifest, f"its file {file} is missing")
            if lengths[file] != record.nbytes:
                return Found(name, number, manifest, f"its file {file} has {lengths[file]} of {record.nbytes} bytes")
        return Found(name, number, manifest, refused=self._refusal(name))

    def _refusal(self, name: str) -> str:
        try:
            with self.own(name):
                return ""
        except NotOwnError as error:
            return str(error)

    def _path(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None, "only such names are listed"
    return int(match[1])


def _read(path: str, most: int, *, follow: bool) -> bytes | None:
    """Read a local file, or so many bytes of it; None: something else is there. Never waits for the writer of a pipe.

    Args:
        path: where.
        most: bytes; -1: all.
        follow: whether it may be a link to a file.

    Raises:
        OSError: it cannot be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def _write_or_remove(file: BufferedWriter, content: bytes) -> None:
    """Write a new file; one that cannot be written is not there."""
    try:
        file.write(content)
        file.flush()
    except OSError:
        Path(file.name).unlink(missing_ok=True)
        raise


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
