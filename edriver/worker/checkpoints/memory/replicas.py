"""What a state has that is no shard is kept once, as rank 0 has it. So all ranks should have the same: a look at that.

It is a look and no proof: of each tensor it takes some elements, of a model some tensors, so that it takes milliseconds
whatever the size of the model. It finds what people get wrong: the state of a data loader or of a random number
generator that each rank has for itself, an optimizer that shards its state in a way that torch does not know of, and
stages of a pipeline that call their layers by the same names. Buffers of a module are left out: those of batch
normalization differ between ranks, and whoever saves by torch keeps those of rank 0, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from edriver.worker.checkpoints import pickles

MAX_TENSORS: Final = 64
"""Tensors that are looked at, spread evenly over all."""

MAX_ELEMENTS: Final = 64
"""Elements of each, spread evenly, too."""

MAX_VALUES: Final = 1000
"""Values that are no tensors."""

SMALL_BYTES: Final = 1 << 20
"""Tensors up to this size are written by one rank. Larger ones, such as parameters under DDP, are dealt out."""

_SCALARS: Final = (int, float, bool, str, type(None))


class Difference(NamedTuple):
    """What ranks have differently: the names, in rank 0's order, and the first rank that differs from rank 0."""

    keys: tuple[str, ...]
    rank: int


def fingerprints(state: Mapping[str, Any], plan: SavePlan, left_out: Collection[int]) -> dict[str, bytes]:
    """Digests of what should be the same on all ranks, by name.

    Args:
        state: as torch.distributed.checkpoint's planner has flattened it.
        plan: this rank's local plan, which says what are shards.
        left_out: addresses of tensors that may differ.
    """
    shards = {item.index.fqn for item in plan.items if item.type is WriteItemType.SHARD}
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in state.items():
        if key in shards:
            continue
        if not isinstance(value, torch.Tensor):
            values[key] = value
        elif value.layout is torch.strided and value.numel() and value.data_ptr() not in left_out:
            tensors[key] = value
    found = {key: _digest(_elements(tensors[key])) for key in _spread(list(tensors), MAX_TENSORS)}
    for key in _spread(list(values), MAX_VALUES):
        try:
            value = values[key]
            found[key] = _digest(repr(value).encode() if type(value) in _SCALARS else pickles.packed(value))
        except Exception:  # noqa: BLE001, S112  of any class: what cannot be saved is said where it is saved
            continue
    return found


def first_difference(of_ranks: Sequence[Mapping[str, bytes]]) -> Difference | None:
    """What another rank has differently than rank 0; None: what was looked at is the same.

    Args:
        of_ranks: the fingerprints of each rank.
    """
    differs = [
        (key, rank)
        for key, digest in of_ranks[0].items()
        for rank, others in enumerate(of_ranks)
        if others.get(key, digest) != digest
    ]
    return Difference(tuple(dict(differs)), min(rank for _, rank in differs)) if differs else None


def written_once(plans: Sequence[SavePlan], differing: Collection[str] = ()) -> list[SavePlan]:
    """The local plans of all ranks, in which only the first rank that has it writes what may differ between ranks.

    torch's global plan deals out to all ranks what several have. A part of it would be as another rank has it.

    Args:
        plans: by rank.
        differing: names of what is larger, and differs.
    """
    first: dict[tuple[str, WriteItemType], int] = {}  # of a tensor and a value by one name, torch refuses the plans
    found = []
    for rank, plan in enumerate(plans):
        items = []
        for item in plan.items:
            name = item.index.fqn
            alone = item.type is not WriteItemType.SHARD and (name in differing or _is_small(item))
            if not alone or first.setdefault((name, item.type), rank) == rank:
                items.append(item)
        found.append(plan if len(items) == len(plan.items) else replace(plan, items=items))
    return found


def _is_small(item: WriteItem) -> bool:
    return item.tensor_data is None or (item.tensor_storage_size() or 0) <= SMALL_BYTES


def buffer_addresses(values: Iterator[Any]) -> frozenset[int]:
    """The addresses of all modules' buffers among these values."""
    modules = (value for value in values if isinstance(value, torch.nn.Module))
    return frozenset(buffer.data_ptr() for module in modules for buffer in module.buffers())


def _elements(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().resolve_conj().resolve_neg()
    flat = values.reshape(-1) if values.is_contiguous() else values.flatten()
    step = max(1, flat.numel() // MAX_ELEMENTS)
    some = flat[::step].contiguous().cpu()
    return repr((tuple(tensor.shape), str(tensor.dtype))).encode() + some.view(torch.uint8).numpy().tobytes()


def _spread(keys: list[str], most: int) -> list[str]:
    return keys[:: -(-len(keys) // most)] if keys else keys


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
