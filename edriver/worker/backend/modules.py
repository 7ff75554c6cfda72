"""What of a torch.nn.Module and of its state_dict has no public name. Checked with torch 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def buffers_of(module: torch.nn.Module) -> dict[str, Any]:
    """A module's own buffers, by name: the dict in which it keeps them, so that a boundary need not ask for them again.

    Interface: Module._buffers.

    Raises:
        AttributeError: modules keep them elsewhere. The boundary before the first step raises it, and the run fails.
    """
    return module._buffers


def class_versions(state: Mapping[str, Any]) -> dict[str, Any]:
    """The class version that each module recorded in a state_dict, by the module's name.

    Interface: the attribute _metadata of the result of Module.state_dict. Without it the result is empty, and
    load_state_dict takes old forms of a state for new ones; a state of this very process is never old.
    """
    return dict(getattr(state, "_metadata", {}))


class StateOfModule(dict[str, Any]):
    """The argument of Module.load_state_dict: a dict with an attribute for the modules' class versions.

    Args:
        values: the state.
        versions: the result of `class_versions` for it.
    """

    def __init__(self, values: Mapping[str, Any], versions: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._metadata = dict(versions)


def is_managed_by_fsdp(module: torch.nn.Module) -> bool:
    """Whether FullyShardedDataParallel has taken this module's parameters over, wherever its wrapper is.

    Interface: the attribute _is_fsdp_managed_module, which it sets for dynamo. Without it a model that is wrapped
    inside a training function is not refused.
    """
    return bool(getattr(module, "_is_fsdp_managed_module", False))
