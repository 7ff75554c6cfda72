"""The metadata of a checkpoint whose parts follow from its tensors' shapes: a few lines for each tensor, not each part.

torch.distributed.checkpoint's metadata names each part of each tensor: of hundreds of parts that takes seconds to make
and megabytes to keep. So it is made where it is read: behind training, or by those that load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from edriver.worker.checkpoints import pickles
from edriver.worker.checkpoints.memory.shard import ShardError, ShardLayout


@dataclass(frozen=True, slots=True)
class PartsMetadata:
    """What part 0 says of a checkpoint.

    Attributes:
        parts: their number.
        sharded: of each tensor that is cut along its rows, in the order in which parts have them: its key, its shape,
            and its type.
        others: what part 0 has besides.
        mappings: see DefaultSavePlanner.
    """

    parts: int
    sharded: Sequence[tuple[str, tuple[int, ...], torch.dtype]]
    others: Sequence[WriteItem]
    mappings: dict[str, Any]

    def expanded(self) -> Metadata:
        """As torch.distributed.checkpoint has it."""
        found: dict[str, Any] = {}
        plans: list[list[WriteItem]] = [[] for _ in range(self.parts)]
        for key, shape, dtype in self.sharded:
            whole, properties, chunks = torch.Size(shape), TensorProperties(dtype=dtype), list[ChunkStorageMetadata]()
            for number, chunk in enumerate(row_chunks(shape, self.parts)):
                if number == 0 or chunk.sizes.numel():
                    index = MetadataIndex(key, chunk.offsets, len(chunks))
                    data = TensorWriteData(chunk, properties, whole)
                    plans[number].append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
                    chunks.append(chunk)
            found[key] = TensorStorageMetadata(properties, whole, chunks)
        for item in self.others:
            data_of = item.tensor_data
            found[item.index.fqn] = (
                BytesStorageMetadata()
                if data_of is None
                else TensorStorageMetadata(data_of.properties, data_of.size, [data_of.chunk])
            )
        plans[0] += self.others
        layouts = map(ShardLayout.of, plans)
        stored = {index: place for number, layout in enumerate(layouts) for index, place in layout.stored(number)}
        return Metadata(found, planner_data=dict(self.mappings), storage_data=stored)


def row_chunks(shape: Sequence[int], parts: int) -> Iterator[ChunkStorageMetadata]:
    """How FSDP2 cuts a tensor into parts, along its rows."""
    rows = -(-shape[0] // parts)
    for number in range(parts):
        first, end = min(shape[0], number * rows), min(shape[0], (number + 1) * rows)
        offsets, sizes = [first, *[0] * (len(shape) - 1)], [end - first, *shape[1:]]
        yield ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def metadata_in(data: bytes) -> Metadata:
    """The metadata that a process of this run has packed.

    Raises:
        ShardError: it is none.
    """
    found = pickles.unpacked(data)
    if isinstance(found, PartsMetadata):
        return found.expanded()
    if not isinstance(found, Metadata):
        raise ShardError("the metadata of the checkpoint is none")
    return found
