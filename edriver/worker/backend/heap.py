"""Memory that the C library keeps, so that a step takes none from the kernel.

New memory costs a page fault for every 4 KiB: 2 microseconds each, and up to 20 on a virtual machine that has given its
free memory back to its host.
"""

from __future__ import annotations

from typing import Final

import torch

HEAP_BYTES: Final = 31 * 2**20
"""Memory that is made ready: nearly as much as the C library (glibc, malloc.c: DEFAULT_MMAP_THRESHOLD_MAX) ever takes
from its heap at once, and keeps there."""


def grow_heap() -> None:
    """Take memory, write to it, and give it back to the heap, from which it will be taken again.

    malloc takes large blocks from the kernel each time, until one has been freed: then it takes such as that from the
    heap, and keeps twice as much there (mallopt(3), M_MMAP_THRESHOLD). Elsewhere than with glibc nothing of it lasts.
    """
    torch.empty(HEAP_BYTES, dtype=torch.uint8)
    torch.zeros(HEAP_BYTES, dtype=torch.uint8)
