"""The memory into which a sync is received: a newcomer writes to it before it joins.

To write to memory for the first time costs a page fault for each of its pages, which on a virtual machine can take
longer than to receive it. In a sync all members would wait for that. A newcomer knows about how much will come once its
model and optimizer are there, while the others still train.

What it knows may be wrong: the mapping is then given the length that does come. What was written to stays, as far as it
is needed, and the rest goes back to the kernel.
"""

from __future__ import annotations

import contextlib
import logging
import mmap

import torch

from edriver.worker.backend.heap import HEAP_BYTES
from edriver.worker.sync.relay import staging

logger = logging.getLogger("edriver.worker")


class ReceivingMemory:
    """The memory of this process for its next sync."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def make_ready(self, length: int) -> None:
        """Have so many bytes, and write to each of their pages; replaces what was there.

        A length that the heap has ready takes nothing, nor does one for which there is no memory.
        """
        self.give_up()
        if length < HEAP_BYTES:
            return
        try:
            # Not in huge pages: nobody waits for the faults here, and where a host has taken back free memory, one huge
            # page takes as long as all of its small ones.
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            logger.info("the state will be received into memory that is new then: %s", error)
            return
        torch.frombuffer(memory, dtype=torch.uint8)[:: mmap.PAGESIZE].zero_()
        self._memory = memory

    def take(self, length: int) -> torch.Tensor:
        """Memory of that length, uint8 of shape (length,), length > 0: what is ready, or else new memory.

        What is ready is used once.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return staging(length)
        with contextlib.suppress(OSError, ValueError, SystemError):  # of a system that cannot
            memory.resize(length)
        return torch.frombuffer(memory, dtype=torch.uint8) if len(memory) == length else staging(length)

    def give_up(self) -> None:
        """Give the memory back that is ready."""
        self._memory = None
