"""Files of a checkpoint server, mapped into this process."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Sequence

import torch


class MappedFile:
    """A file of shared memory as a tensor of its bytes.

    Args:
        path: where it is.
        writable: whether it is to be written to; else what is written stays in this process.

    Attributes:
        identity: equal for two names of one file.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, path: str, *, writable: bool) -> None:
        file = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            self.identity = found.st_dev, found.st_ino, found.st_size
            # Populated at once, a new buffer costs less than page by page in the first save.
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE if writable else mmap.MAP_PRIVATE
            self._memory = mmap.mmap(file, found.st_size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(file)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._pinned = False
        self._unpin: Callable[[], None] | None = None

    def pin(self, pin: Callable[[int, int], Callable[[], None] | None]) -> None:
        """Have a device write into it directly; done once.

        Args:
            pin: is given its address and its length; returns what undoes it.
        """
        if not self._pinned:
            self._pinned = True
            self._unpin = pin(self._bytes.data_ptr(), len(self))

    def unpin(self) -> None:
        """Before it is unmapped."""
        if self._unpin is not None:
            self._unpin()
            self._unpin = None

    def __len__(self) -> int:
        return len(self._memory)

    def tensor(self, at: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The tensor at an offset, which shares the file's memory."""
        length = math.prod(sizes) * dtype.itemsize
        return self._bytes[at : at + length].view(dtype).view(tuple(sizes))

    def write(self, at: int, data: bytes) -> None:
        """Write bytes."""
        self._memory[at : at + len(data)] = data

    def read(self, at: int, length: int) -> bytes:
        """Read bytes."""
        return self._memory[at : at + length]


class Mappings:
    """The files into which this process writes, which stay mapped: the server gives it the same ones in turn."""

    def __init__(self) -> None:
        self._files: dict[str, MappedFile] = {}

    def writable(self, path: str) -> MappedFile:
        """The file at a path.

        Raises:
            OSError: it cannot be mapped.
        """
        file = self._files.get(path)
        if file is None or file.identity != _identity(path):
            # First: there may be no memory for both. What the server has closed would stay allocated.
            gone = [name for name, kept in self._files.items() if kept.identity != _identity(name)]
            for name in gone:
                self._files.pop(name).unpin()
            file = self._files[path] = MappedFile(path, writable=True)
        return file


def _identity(path: str) -> tuple[int, int, int] | None:
    """What tells the file at a path from others that it may stand for later; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  a path of /proc, as it was given
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size
