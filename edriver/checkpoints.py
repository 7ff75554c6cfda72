"""Checkpoints of any training script: in the memory of an edriver run's hosts, or on disk.

`Checkpoints` is what most scripts want. `MemoryWriter` and `MemoryReader` are the storage that
`torch.distributed.checkpoint` is given by scripts that call it themselves.
"""

from __future__ import annotations

from edriver.worker.checkpoints.memory.storage import MemoryReader, MemoryWriter
from edriver.worker.checkpoints.script_checkpoints import Checkpoints

__all__ = ["Checkpoints", "MemoryReader", "MemoryWriter"]
