"""What an optimizer will keep of its parameters once it has made a step: Adam makes its moments in the first one.

A newcomer wants to know it before it has made any, and how much memory it takes. A step of the optimizer itself would
call the script's hooks, and change parameters. So one like it makes a step with a parameter of a few elements.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any, Final

import torch
from torch.optim import Optimizer

from edriver.worker.backend.process_modes import as_at_start

logger = logging.getLogger("edriver.worker")

_SHAPE: Final = (2, 2)


def kept_dtypes(optimizer: Optimizer, group: dict[str, Any], dtype: torch.dtype) -> list[torch.dtype]:
    """The data type of each tensor that it will keep of a parameter and that has its shape.

    Args:
        optimizer: which may have made steps. Only those of torch are known; what others keep counts as nothing.
        group: one of its `param_groups`, whose options count.
        dtype: the parameter's.
    """
    if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
        return []
    with as_at_start():
        parameter = torch.nn.Parameter(torch.ones(_SHAPE, dtype=dtype, device="cpu"))
        parameter.grad = torch.ones(_SHAPE, dtype=dtype, device="cpu")
        twin = type(optimizer).__new__(type(optimizer))
        twin.__setstate__(  # as if it had been pickled
            {
                "defaults": dict(optimizer.defaults),
                "state": defaultdict(dict),
                # Captured into a CUDA graph or not, it keeps the same.
                "param_groups": [{**group, "params": [parameter], "capturable": False}],
            }
        )
        try:
            twin.step()
        except Exception as error:  # noqa: BLE001  one that takes a closure, or wants its parameters on a GPU
            logger.debug("what %s keeps is not known before its first step: %s", type(optimizer).__name__, error)
            return []
    kept = twin.state[parameter].values()
    return [value.dtype for value in kept if isinstance(value, torch.Tensor) and value.shape == _SHAPE]
