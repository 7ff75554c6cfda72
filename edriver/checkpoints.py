"""Checkpoints of any training script, in the memory of an edriver run's hosts.

`MemoryWriter` and `MemoryReader` are the storage that
`torch.distributed.checkpoint` is given by scripts that call it themselves.
"""

from __future__ import annotations

from edriver.worker.checkpoints.memory.storage import MemoryReader, MemoryWriter

__all__ = ["MemoryReader", "MemoryWriter"]
