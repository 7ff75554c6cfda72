"""Parameter groups that a script has added to its optimizer while it trained: a newcomer's optimizer lacks them.

They travel by the names that their parameters have in the state's models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

Names = list[list[str] | None]
"""For each group its parameters' names, `attribute.path`; None: one of them is in no model of the state."""


def parameter_names(groups: list[dict[str, Any]], models: Mapping[str, torch.nn.Module]) -> Names:
    """The names of some groups' parameters."""
    names = {parameter: name for name, parameter in _parameters(models).items()}
    return [
        [names[p] for p in group["params"]] if all(p in names for p in group["params"]) else None for group in groups
    ]


def add(optimizer: Optimizer, names: Names, models: Mapping[str, torch.nn.Module]) -> None:
    """Add groups of these parameters; their options are those of the optimizer's constructor.

    Raises:
        ValueError: a parameter is in no model of the state here, or was not there.
    """
    parameters = _parameters(models)
    for group in names:
        if group is None or any(name not in parameters for name in group):
            raise ValueError(
                "a parameter group was added to it while others trained, with parameters that do not belong to a model "
                "of the state: before edriver.run, give the state every model whose parameters an optimizer has"
            )
    for group in names:
        assert group is not None, "checked above"
        optimizer.add_param_group({"params": [parameters[name] for name in group]})


def _parameters(models: Mapping[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    return {f"{name}.{path}": p for name, model in models.items() for path, p in model.named_parameters()}
