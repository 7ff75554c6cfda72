"""DCP's planners, for a script's state: plans are kept from save to save, and a load says what does not fit.

The state itself is that of script_state.py.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from edriver.worker.checkpoints.memory import deepspeed_engine
from edriver.worker.checkpoints.memory.replicas import written_once
from edriver.worker.checkpoints.memory.script_state import SCALARS, Whole, unpicklable
from edriver.worker.errors import CheckpointError

logger = logging.getLogger("edriver.worker")

_PLAIN_TENSORS: Final = (torch.Tensor, nn.Parameter)


class MadePlan(NamedTuple):
    """A local plan, and what it was made of: see `structure_of`, and DefaultSavePlanner's `mappings`."""

    structure: dict[str, Any] | None
    mappings: Mapping[str, Any]
    plan: SavePlan


class StatePlanner(DefaultSavePlanner):
    """DCP's planner. Of plain values that are the same, such as the learning rates of all parameters, it packs one; and
    it makes a plan only if the structure of the state is another than at the save before: a plan takes a millisecond
    for each DTensor, seconds for a large model.

    Args:
        made: the plan of the save before, if any.

    Attributes:
        made: the plan of this save, after `create_local_plan`.
    """

    def __init__(self, made: MadePlan | None = None) -> None:
        super().__init__()
        self.made = made
        self._packed: dict[tuple[type, str], Any] = {}

    def create_local_plan(self) -> SavePlan:
        """Plan this rank's items. A state of the same structure as before gets the very same plan object."""
        structure = structure_of(self.state_dict)
        if self.made is None or structure is None or self.made[:2] != (structure, self.mappings):
            super().create_local_plan()
            self.made = MadePlan(structure, self.mappings, self.plan)
        self.plan = self.made.plan
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Have each value that several ranks hold written by one of them."""
        return super().create_global_plan(written_once(all_plans))

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002  torch's name
        """The value to be written: what a Whole holds, and of a lazy view its values."""
        if isinstance(object, Whole):
            object = object.value  # noqa: A001
        elif isinstance(object, torch.Tensor):  # the bytes of a conjugate or negative view are not its values
            object = object.resolve_conj().resolve_neg()  # noqa: A001
        if type(object) not in SCALARS:
            try:
                return super().transform_object(write_item, object)
            except Exception as error:
                if isinstance(object, torch.Tensor):
                    raise
                raise unpicklable(write_item.index.fqn, error) from error
        key = type(object), repr(object)
        if key not in self._packed:
            self._packed[key] = super().transform_object(write_item, object)
        return self._packed[key]


def structure_of(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """All of a flattened state on which its local plan depends; None: that is not known for all of its values."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, DTensor):
            found[key] = value.shape, value.dtype, value.requires_grad, value.placements, value.device_mesh
        elif not isinstance(value, torch.Tensor):
            found[key] = None  # it is packed, whatever it is
        elif type(value) in _PLAIN_TENSORS:
            found[key] = value.shape, value.dtype, value.requires_grad, value.layout
        else:
            return None
    return found


class CheckedLoadPlanner(DefaultLoadPlanner):
    """DCP's planner, which says what to do where the state has changed since it was saved."""

    def __init__(self) -> None:
        super().__init__()
        self._unpacked: dict[bytes, Any] = {}

    def create_local_plan(self) -> LoadPlan:
        """See DefaultLoadPlanner.

        Raises:
            CheckpointError: the checkpoint has not what the state needs; names it.
        """
        assert self.metadata is not None, "it was given"
        stored = self.metadata.state_dict_metadata
        missing = [key for key in self.state_dict if key not in stored and not _is_unsaved(key, stored)]
        if missing:
            if (size := deepspeed_engine.size_in(missing[0])) is not None:
                raise CheckpointError(
                    f"the checkpoint has no part of {missing[0]}: in ZeRO each rank has its own, and those of another "
                    f"number of ranks than {size} cannot be loaded. Start as many as have saved it"
                )
            if grown := [key for key in missing if _is_inside(key, stored)]:
                raise CheckpointError(
                    f"the checkpoint does not fit the state: it has no {named(grown)}, which the state has. A dict or "
                    "list of tensors needs for load the keys and the length with which it was saved: make it as long "
                    "before load, or keep what grows in one tensor of its final size, or as numbers"
                )
            raise _changed(f"it has no {named(missing)}, which the state has")
        converted = []
        for key, value in self.state_dict.items():
            if key not in stored:
                continue
            entry = stored[key]
            if isinstance(value, torch.Tensor) != isinstance(entry, TensorStorageMetadata):
                raise _changed(f"{key} is a tensor in one of the two, and a plain value in the other")
            if isinstance(entry, TensorStorageMetadata) and entry.size != value.size():
                raise _changed(f"{key} has the shape {tuple(entry.size)} in it, and {tuple(value.size())} in the state")
            if isinstance(entry, TensorStorageMetadata) and entry.properties.dtype != value.dtype:
                converted.append(f"{key} ({entry.properties.dtype} in it, {value.dtype} in the state)")
        if converted:
            logger.warning("the checkpoint is converted where the state has another dtype: %s", named(converted))
        unused = [key for key in stored if key not in self.state_dict]
        if unused:
            logger.warning("the checkpoint has %s, which the state has not: it is left out", named(unused))
        self.allow_partial_load = True  # what is missing has been looked at
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """See DefaultLoadPlanner. What many keys have, such as the options of an optimizer, is unpacked once."""
        path, data = self.mappings[read_item.dest_index.fqn], value.getvalue()
        part = self.original_state_dict.get(str(path[0])) if len(path) == 2 else None
        if data in self._unpacked and isinstance(part, dict):
            part[path[1]] = self._unpacked[data]
            return
        super().load_bytes(read_item, value)
        if isinstance(part, dict) and _is_constant(part[path[1]]):
            self._unpacked[data] = part[path[1]]


def _is_constant(value: Any) -> bool:
    """Whether several may have the same object, as nothing can change it."""
    return all(type(inner) in SCALARS for inner in (value if type(value) is tuple else (value,)))


def _is_unsaved(key: str, stored: Mapping[str, Any]) -> bool:
    """Whether a key is of the state of a parameter that an optimizer knew, and had no state for."""
    name, found, rest = key.partition(".state.")
    parameter = rest.rpartition(".")[0]
    known = any(other.startswith(f"{name}.param_groups.{parameter}.") for other in stored)
    return bool(found) and known and not any(other.startswith(f"{name}.state.{parameter}.") for other in stored)


def _is_inside(key: str, stored: Iterable[str]) -> bool:
    """Whether a key belongs to a dict or list that the checkpoint has with other keys, or another length."""
    parent, inside, last = key.rpartition(".")
    siblings = bool(inside) and last.isdecimal() and any(other.startswith(f"{parent}.") for other in stored)
    return siblings or any(other.startswith(f"{key}.") for other in stored)


def _changed(how: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint does not fit the state: {how}. Give load a state of the structure that was saved, or begin "
        "in another folder"
    )


def named(keys: Sequence[str], most: int = 3) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
