"""DeepSpeed's engine as the modules and optimizers that it consists of, which checkpoints can hold.

In ZeRO's stages 1 and 2 each rank has the optimizer's state of its own part of the parameters, in flat tensors. As they
are no DTensors, torch would take them for the same on all ranks. So each rank's have names here that no other rank's
have, and such a checkpoint can be loaded by the same number of ranks only. DeepSpeed is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from edriver.worker.errors import CheckpointError

_STAGES: Final = (1, 2)

_COUNTS: Final = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
_ENGINE: Final = "deepspeed.runtime.engine", "DeepSpeedEngine"
_OF_SIZE: Final = re.compile(r"\brank\d+of(\d+)_\d+")


def is_engine(value: Any) -> bool:
    """Whether this is what `deepspeed.initialize` returns."""
    return any((kind.__module__, kind.__name__) == _ENGINE for kind in type(value).__mro__)


def is_optimizer(value: Any) -> bool:
    """Whether this is an optimizer of DeepSpeed's that has another inside."""
    wraps = hasattr(value, "param_groups") and isinstance(getattr(value, "optimizer", None), Optimizer)
    return wraps and type(value).__module__.startswith("deepspeed.")


def engine_parts(name: str, engine: Any) -> dict[str, Any]:
    """The modules and other objects that have an engine's state.

    Args:
        name: the engine's in the state; the parts' names begin with it.
        engine: the engine.

    Raises:
        CheckpointError: ranks have the state in parts that are not known here.
    """
    stage = engine.zero_optimization_stage()
    if stage not in _STAGES or not is_optimizer(engine.optimizer):
        kind = type(engine.optimizer).__name__
        raise CheckpointError(
            f"the state's {name!r} is a DeepSpeed engine of ZeRO stage {stage}, with {kind}: "
            "edriver can keep those of stages 1 and 2 with DeepSpeedZeroOptimizer. Use the engine's save_checkpoint"
        )
    if engine.pipeline_parallelism or engine.has_moe_layers or engine.mp_world_size > 1:
        raise CheckpointError(
            f"the state's {name!r} is a DeepSpeed engine whose model is divided among ranks (pipeline or tensor "
            "parallelism, or experts): edriver cannot keep that. Use the engine's save_checkpoint"
        )
    optimizer = engine.optimizer.optimizer
    parts = {
        name: engine.module,
        f"{name}/partitions": _Partitions(optimizer),
        f"{name}/optimizer": optimizer,
        f"{name}/progress": _Progress(engine),
    }
    if engine.lr_scheduler is not None:
        parts[f"{name}/scheduler"] = engine.lr_scheduler
    return parts


def size_in(key: str) -> int | None:
    """The number of ranks that have saved, by the key of a part that each has for itself; None: the key is another."""
    found = _OF_SIZE.search(key)
    return None if found is None else int(found[1])


class _Partitions(nn.Module):
    """This rank's part of the parameters, as a module whose names no other rank has."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        of_rank = f"rank{dist.get_rank()}of{dist.get_world_size()}"
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"{of_rank}_{number}", tensor)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """The tensors: DeepSpeed's are no nn.Parameters, which alone can be registered as parameters."""
        return self.named_buffers(*args, **kwargs)


class _Progress:
    """What an engine counts, and the scale of its losses."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        """By the engine's names."""
        counts = {name: getattr(self._engine, name) for name in _COUNTS}
        return {**counts, "loss_scaler": self._engine.optimizer.loss_scaler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name in _COUNTS:
            setattr(self._engine, name, state[name])
        self._engine.optimizer.loss_scaler = state["loss_scaler"]
