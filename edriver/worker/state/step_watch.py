"""Where in a step the optimizers are: gradients that wait to be used, and steps that have begun.

With gradient accumulation a script may call `commit` after every batch. A state saved in between would have the batch
as done and not what was learnt from it: after a failure its samples would be lost. So such a boundary does not count.

A step is counted when it begins, not when it ends: an exception inside it has already changed something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

WITNESSES = 8
"""How many parameters of an optimizer tell that gradients have been accumulated. A hook for each would cost every
backward pass a call of Python per parameter; one alone may be frozen, or have no part in a batch."""


class StepWatch:
    """Watches optimizers and their parameters.

    Args:
        before_step: called when an optimizer begins a step, before it changes anything.

    Attributes:
        pending: whether a gradient has been accumulated since any of the optimizers made a step. A step that GradScaler
            skips is none: its batch counts with the next.
        begun: how many steps have begun.
    """

    def __init__(self, before_step: Callable[[], None] = lambda: None) -> None:
        self._before_step = before_step
        self.pending = False
        self.begun = 0
        self._optimizers: list[Optimizer] = []
        self._witnesses: list[torch.Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._parameters = 0

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Watch these from now on, instead of those before."""
        self.pending = False
        self._optimizers = list(optimizers)
        self._watch()

    def adapt(self) -> bool:
        """Choose witnesses anew if an optimizer has more parameters or a witness was frozen; whether that was so."""
        if self._parameters == _count(self._optimizers) and all(p.requires_grad for p in self._witnesses):
            return False
        self._watch()
        return True

    def clear(self) -> None:
        """The gradients are gone."""
        self.pending = False

    def _watch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._parameters = _count(self._optimizers)
        witnesses: dict[int, torch.Tensor] = {}
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._begins))
            self._handles.append(optimizer.register_step_post_hook(self._stepped))
            learning = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.is_leaf]
            witnesses |= {id(p): p for p in (*learning[:: -(-len(learning) // WITNESSES) or 1], *learning[-1:])}
        self._witnesses = list(witnesses.values())
        for parameter in self._witnesses:
            hook = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self._handles.append(hook)

    def _accumulated(self, _parameter: torch.Tensor) -> None:
        self.pending = True

    def _begins(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[Any, Any]) -> None:
        self.begun += 1
        self._before_step()

    def _stepped(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[Any, Any]) -> None:
        self.pending = False


def _count(optimizers: list[Optimizer]) -> int:
    return sum([len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups])
