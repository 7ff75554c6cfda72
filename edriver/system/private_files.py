"""Files that only their user can read, from their first byte on; folders whose entries survive a power cut."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file for writing, and make it if there is none; returns the descriptor.

    A file of this user's that is empty, or is emptied, becomes private, too. One that others may read and that has
    something in it keeps its permissions: that was its owner's decision.

    Args:
        path: where.
        flags: more flags for open(2), such as os.O_APPEND or os.O_TRUNC.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and not found.st_size and found.st_uid == os.geteuid() and found.st_mode & 0o077:
        try:
            os.fchmod(descriptor, 0o600)
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk: of what was made, renamed or removed there.

    Raises:
        OSError: that cannot be done.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
