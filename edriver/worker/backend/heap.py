"""Memory that the C library keeps, so that a step takes none from the kernel.

New memory costs a page fault for every 4 KiB: 2 microseconds each, and up to 20 on a virtual machine that has given its
free memory back to its host.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

import torch

HEAP_BYTES: Final = 31 * 2**20
"""Memory that is made ready: nearly as much as the C library (glibc, malloc.c: DEFAULT_MMAP_THRESHOLD_MAX) ever takes
from its heap at once, and keeps there."""

KEPT_BYTES: Final = 2**30
"""Free memory at the end of its heap that the C library keeps. Of itself it keeps twice HEAP_BYTES and gives the rest
back after each step, where a model takes more."""

_M_TRIM_THRESHOLD: Final = -1
"""Of malloc.h."""


def grow_heap() -> None:
    """Take memory, write to it, and give it back to the heap, from which it will be taken again.

    malloc takes large blocks from the kernel each time, until one has been freed: then it takes such as that from the
    heap, and keeps twice as much there (mallopt(3), M_MMAP_THRESHOLD). Elsewhere than with glibc nothing of it lasts.
    """
    torch.empty(HEAP_BYTES, dtype=torch.uint8)
    torch.zeros(HEAP_BYTES, dtype=torch.uint8)
    _keep_what_is_freed()


def fill_heap(length: int) -> None:
    """Have the heap keep at least so many bytes that have been written to, up to KEPT_BYTES. Comes after `grow_heap`.

    It serves blocks of less than HEAP_BYTES. A process that trains has as much there after its first step.
    """
    count = min(length, KEPT_BYTES) // HEAP_BYTES
    libc = ctypes.CDLL(None)
    malloc, free = libc.malloc, libc.free
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None
    # Tensors would have small objects of their own between these blocks, which keep freed ones apart.
    blocks = [address for _ in range(count) if (address := malloc(HEAP_BYTES)) is not None]
    for address in blocks:
        memory = (ctypes.c_uint8 * HEAP_BYTES).from_address(address)
        torch.frombuffer(memory, dtype=torch.uint8)[:: mmap.PAGESIZE].zero_()
    for address in reversed(blocks):
        free(address)


def _keep_what_is_freed() -> None:
    """Have the heap keep more, unless the environment says how much. This ends what malloc adapts by itself: so it
    comes when the heap serves large blocks.
    """
    chosen = "MALLOC_TRIM_THRESHOLD_" in os.environ or "trim_threshold" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not chosen:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
