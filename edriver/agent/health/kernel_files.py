"""Files that the kernel makes up as they are read, below /proc and /sys: an agent reads dozens of them a second."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

READ_BYTES: Final = 64 * 1024


def kernel_text(file: Path) -> str:
    """The whole text of such a file. Path.read_text makes twice as many calls, and takes twice as long.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, READ_BYTES):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")
