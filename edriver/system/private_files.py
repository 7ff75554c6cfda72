"""Files of this user alone: those that only it can read, from their first byte on, and those that no other account has
made or can change, because what they say is obeyed, or they hold code. Folders whose entries survive a power cut.

The folder is opened, what was opened is looked at, and what is in it is reached through that, so renaming a folder
above it changes nothing; SQLite goes by paths, so afterwards the files that it has open are compared. A file at a path
that the user gives is looked at before it is written to: another account's links, files and pipes are refused. Where a
network file system gives all files one owner, a file that is made there tells which.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
"""Permissions that let other accounts write."""

MAX_LINKS: Final = 40
"""Links that are followed one after the other at most, as the kernel does."""


class NotOwnError(Exception):
    """Another account has made a file, or could have. The message is a sentence: which file, why, and what to do."""


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file for writing, and create it if it does not exist; returns the descriptor.

    A file of this user's that is empty, or is emptied, becomes private, too. One that others may read and that has
    something in it keeps its permissions: that was its owner's decision. What another account than root has laid
    there, be it a link, a file or a pipe, is not opened, and nothing waits for the reader of a pipe.

    Args:
        path: where.
        flags: more flags for open(2), such as os.O_APPEND or os.O_TRUNC.

    Raises:
        OSError: it cannot be opened.
    """
    # What is there is looked at before it is emptied.
    descriptor = _open_own_links(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (flags & ~os.O_TRUNC))
    try:
        found = os.fstat(descriptor)
        if found.st_uid not in _trusted_accounts() and (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            with _opened(path.parent) as folder:
                if found.st_uid != _seen_in(folder)[0]:
                    raise _foreign(path, "it belongs to", found)
        os.set_blocking(descriptor, True)
        if stat.S_ISREG(found.st_mode):
            if flags & os.O_TRUNC and found.st_size:
                os.ftruncate(descriptor, 0)
            empty = not found.st_size or flags & os.O_TRUNC
            if empty and found.st_uid == os.geteuid() and found.st_mode & 0o077:
                os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_own_links(path: Path, flags: int) -> int:
    """Open a file. Links are followed, if it is one, but for those of other accounts.

    Raises:
        OSError: it cannot be opened.
    """
    at = path
    for _ in range(MAX_LINKS):
        try:
            return os.open(at, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno == errno.ENXIO and at.is_fifo():
                raise OSError(errno.ENXIO, "it is a pipe that no process reads from", str(path)) from None
            if error.errno != errno.ELOOP:
                raise
        found, target = _link_at(at)
        if found.st_uid not in _trusted_accounts():
            raise _foreign(path, "it is a symbolic link of", found)
        if at.parent.resolve().is_relative_to("/proc"):  # such as /dev/stdout: it leads to what has no path
            return os.open(at, flags | os.O_NONBLOCK, 0o600)
        at = at.parent / target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _link_at(path: Path) -> tuple[os.stat_result, str]:
    """Whose a symbolic link is, and where that very one leads: another may take its place at any moment.

    Raises:
        OSError: it is a link no more.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor), os.readlink("", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _foreign(path: Path, words: str, found: os.stat_result) -> PermissionError:
    return PermissionError(
        errno.EPERM, f"{words} {account_name(found.st_uid)}: remove it, or give another path", str(path)
    )


def _trusted_accounts() -> set[int]:
    """This user and root. In a user namespace root may have another number, but it has the root folder."""
    return {os.geteuid(), 0, Path("/").stat().st_uid}


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, for this user alone. One that is there stays as it is.

    Raises:
        OSError: that cannot be done.
    """
    for missing in [folder, *folder.parents][::-1]:
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # says so if something else is there


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk: of what was made, renamed or removed there.

    Raises:
        OSError: that cannot be done.
    """
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


def close_to_others(made: int) -> None:
    """Take from other accounts the right to write to what this process has just made, whatever the umask.

    Where the file system knows no permissions it stays as it is.

    Args:
        made: its descriptor.
    """
    if (mode := stat.S_IMODE(os.fstat(made).st_mode)) & OTHERS_MAY_WRITE:
        with suppress(OSError):
            os.fchmod(made, mode & ~OTHERS_MAY_WRITE)


class OwnFolder:
    """An open folder that no other account can change.

    It is opened first, and then what was opened is looked at. If only this user can change it, it stays good: other
    accounts can rename it or put another folder in its place, but nothing that they do changes what is in it.

    Args:
        path: where it is.
        or_roots: whether what belongs to root is as good as this user's own.
        follow: whether it may be a link to the folder.

    Raises:
        NotOwnError: another account can change it, or it is a link and may not be one.
        OSError: it cannot be opened, or is not a folder.
    """

    def __init__(self, path: Path, *, or_roots: bool = False, follow: bool = True) -> None:
        self._path = path
        if not follow and path.is_symlink():
            raise NotOwnError(f"{_shown(path)} is a symbolic link: remove it")
        nofollow = 0 if follow else os.O_NOFOLLOW
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | nofollow)
        self._owners = {os.geteuid(), 0} if or_roots else {os.geteuid()}
        try:
            self._check(path, os.fstat(self._descriptor))
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def pinned(self) -> Path:
        """A path of this very folder for as long as it is open here, whatever becomes of its own."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    def check(self, names: Iterable[str]) -> None:
        """See that those of these files that are there are as the folder is.

        Raises:
            NotOwnError: another account has made or can change one, or it is not a regular file.
        """
        for name in names:
            if (found := self._found(name)) is None:
                continue
            path = self._path / name
            if not stat.S_ISREG(found.st_mode):
                raise NotOwnError(f"{_shown(path)} is not a regular file: remove it")
            self._check(path, found)

    def check_all(self) -> None:
        """The same, of all that is in it.

        Raises:
            NotOwnError: see `check`.
        """
        self.check(sorted(path.name for path in self.pinned.iterdir()))

    def open(self, name: str) -> int:
        """Open a file in it for reading and writing, and make it, for this user alone, if there is none.

        Returns:
            the descriptor.

        Raises:
            NotOwnError: see `check`.
            OSError: it cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.check([name])
        return os.open(name, flags, 0o600, dir_fd=self._descriptor)

    def check_opened(self, names: Iterable[str]) -> None:
        """See that this process has opened these files of the folder by their paths, and no others that took its place.

        Raises:
            NotOwnError: it has not.
        """
        opened = set()
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # such as the one of this very listing
                found = link.stat()
                opened.add((found.st_dev, found.st_ino))
        for name in names:
            there = self._found(name)
            if there is not None and (there.st_dev, there.st_ino) not in opened:
                raise NotOwnError(f"{_shown(self._path)} was replaced with another folder while it was being opened")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _found(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _check(self, path: Path, found: os.stat_result) -> None:
        if found.st_uid in self._owners and not found.st_mode & OTHERS_MAY_WRITE:
            return
        owner, mask = _seen_in(self._descriptor)
        if found.st_uid not in {*self._owners, owner}:
            raise NotOwnError(
                f"{_shown(path)} belongs to {account_name(found.st_uid)}, and its contents would be run as "
                f"{account_name(os.geteuid())}. If you trust it, make your own copy (cp -r)"
            )
        if found.st_mode & OTHERS_MAY_WRITE & mask:
            whom = "every account" if found.st_mode & stat.S_IWOTH else "its group"
            raise NotOwnError(
                f"{_shown(path)} can be changed by {whom} (its mode is {stat.S_IMODE(found.st_mode):04o}), and its "
                f"contents would be run as {account_name(os.geteuid())}. If you trust it: "
                f"chmod -R go-w {shlex.quote(_shown(self._path))}"
            )


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _seen_in(folder: int) -> tuple[int, int]:
    """Whose a file of this user's is in a folder, and which of OTHERS_MAY_WRITE count there.

    A network file system may give all files one owner, or know no permissions. So make one, and look.

    Args:
        folder: its descriptor.
    """
    name = f".edriver-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        return os.geteuid(), OTHERS_MAY_WRITE
    try:
        made = os.fstat(descriptor)
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
    return made.st_uid, OTHERS_MAY_WRITE & ~made.st_mode


def account_name(user: int) -> str:
    """An account in words, by its number: its name, if it has one here, and the number."""
    try:
        return f"{pwd.getpwuid(user).pw_name} (user ID {user})"
    except KeyError:
        return f"user ID {user}"


def _shown(path: Path) -> str:
    return str(path) if str(path).isprintable() else ascii(str(path))
