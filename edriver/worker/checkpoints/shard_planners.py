"""How torch.distributed.checkpoint's planners take tensors of which a process has a shard.

They are given plain tensors, each with its place in the whole one: nothing here needs a process group or a mesh, which
may be gone by the time that a checkpoint is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where in a tensor a shard of it lies.

    Attributes:
        whole: the tensor's shape,
        sizes: and the shard's.
        offsets: in the whole of the shard's first element.
        writes: whether this worker writes it, of those in its replica that have the same one.
    """

    whole: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    writes: bool = True

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The same, as DCP names it."""
        return ChunkStorageMetadata(torch.Size(self.offsets), torch.Size(self.sizes))


class PartPlanner(DefaultSavePlanner):
    """Plans and resolves one part of a checkpoint: this process's shards, and in the first part all that is whole.

    Args:
        shards: the places of tensors that are shards, by the tensors' ids.
        part: the number of the part.
    """

    def __init__(self, shards: Mapping[int, ShardPlace], part: int) -> None:
        super().__init__()
        self._shards = shards
        self._part = part

    def sharded(self) -> Iterator[tuple[str, ShardPlace, torch.dtype]]:
        """The key, place and type of each shard, in the order in which a part has them."""
        for key, value in self.state_dict.items():
            if (place := self._shards.get(id(value))) is not None:
                yield key, place, value.dtype

    def create_local_plan(self) -> SavePlan:
        """What this part has; a shard without elements, as where there are fewer rows than shards, is in none but the
        first, which says that the tensor is there.
        """
        items: list[WriteItem] = []
        whole: dict[str, Any] = {}
        for key, value in self.state_dict.items():
            place = self._shards.get(id(value))
            if place is None:
                whole[key] = value
            elif place.writes and (value.numel() or self._part == 0):
                properties = TensorProperties.create_from_tensor(value)
                data = TensorWriteData(place.chunk, properties, torch.Size(place.whole))
                index = MetadataIndex(key, torch.Size(place.offsets))
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        if self._part == 0:
            items += create_default_local_save_plan(whole, True).items
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The shard itself."""
        return self.state_dict[index.fqn]


class ShardLoadPlanner(DefaultLoadPlanner):
    """Loads plain tensors, some of which are to become shards of what is stored.

    Args:
        shards: their places, by their keys.
    """

    def __init__(self, shards: Mapping[str, ShardPlace]) -> None:
        super().__init__()
        self._shards = shards

    def create_local_plan(self) -> LoadPlan:
        """Read what of each stored chunk lies in a shard."""
        assert self.metadata is not None, "it has been set up"
        whole = {key: value for key, value in self.state_dict.items() if key not in self._shards}
        plan = create_default_local_load_plan(whole, self.metadata, True)
        for key, place in self._shards.items():
            stored = self.metadata.state_dict_metadata[key]
            if 0 not in place.sizes:
                plan.items.extend(create_read_items_for_chunk_list(key, stored, [place.chunk]))  # type: ignore[arg-type]
        return plan

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The shard itself."""
        found: torch.Tensor = self.state_dict[index.fqn]
        return found
