"""Whether a step is half done: gradients have been accumulated, and the optimizer has not used them yet.

With gradient accumulation a script may call `commit` after every batch. A state saved in between would have the batch
as done and not what was learnt from it: after a failure its samples would be lost. So such a boundary does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class Accumulation:
    """Watches optimizers and their parameters.

    Attributes:
        pending: whether a gradient has been accumulated since any of the optimizers made a step. A step that GradScaler
            skips is none: its batch counts with the next.
    """

    def __init__(self) -> None:
        self.pending = False
        self._handles: list[RemovableHandle] = []

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Watch these from now on, instead of those before.

        Of each optimizer's parameters the first and the last tell for all: a hook for each would cost every backward
        pass a call of Python per parameter.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.pending = False
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_post_hook(self._stepped))
            learning = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.is_leaf]
            for parameter in {id(p): p for p in (*learning[:1], *learning[-1:])}.values():
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))

    def clear(self) -> None:
        """The gradients are gone."""
        self.pending = False

    def _accumulated(self, _parameter: torch.Tensor) -> None:
        self.pending = True

    def _stepped(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[Any, Any]) -> None:
        self.pending = False
