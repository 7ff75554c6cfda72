"""Where in a step the optimizers are: gradients that wait to be used, and steps that have begun.

With gradient accumulation a script may call `commit` after every batch. A state saved in between would have the batch
as done and not what was learnt from it: after a failure its samples would be lost. So such a boundary does not count.
Gradients wait for their own optimizer's step. One that has made its step since the last boundary waits for none: what a
second optimizer's backward pass leaves in it, as in a GAN, is not for it.

A step is counted when it begins, not when it ends: an exception inside it has already changed something. One with a
closure begins when the closure first returns: until then it is a forward and a backward pass, in which peers are lost.

A state that is seen to be exposed commits on its own, for at most 1 % of the time: while an attribute is too large for
a boundary, and once a collective has been begun between an optimizer's step and the boundary, which the group's count
of collectives shows.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from edriver.worker import context
from edriver.worker.backend import torch_groups
from edriver.worker.backend.nested_steps import is_nested

logger = logging.getLogger("edriver.worker")

WITNESSES_PER_OPTIMIZER = 8
"""Number of parameters of an optimizer that show whether gradients have been accumulated. A hook for each would cost
every backward pass a call of Python per parameter; one alone may be frozen, or have no part in a batch."""

STEP_BEGUN: Final = (
    "a member was lost in a collective between an optimizer's step and the boundary (a metric, a second optimizer's "
    "backward pass, LBFGS): call state.check_host_updates() before it, or state.commit() more often"
)
"""Why a state is torn, and what to do about it."""


class StepWatch:
    """Watches optimizers and their parameters.

    Args:
        before_step: called when an optimizer is about to begin a step; an exception prevents the step.
        collectives: returns the number of collectives that this process has begun.

    Attributes:
        begun: the number of steps that have begun.
    """

    def __init__(
        self,
        before_step: Callable[[], None] = lambda: None,
        collectives: Callable[[], int] = torch_groups.collectives_begun,
    ) -> None:
        self._before_step = before_step
        self._collectives = collectives
        self._at_step: int | None = None
        self._late = False
        self.begun = 0
        self._waiting: set[int] = set()  # places of optimizers that have gradients
        self._stepped: set[int] = set()  # and of those that have made a step since the last boundary
        self._optimizers: list[Optimizer] = []
        self._witnesses: list[torch.Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._before: list[RemovableHandle] = []
        self._parameters = 0

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Watch these from now on, instead of those before."""
        self.clear()
        self._optimizers = list(optimizers)
        self._watch()

    @property
    def watches(self) -> bool:
        """Whether there are optimizers whose steps are seen."""
        return bool(self._optimizers)

    def adapt(self) -> bool:
        """Choose witnesses again if an optimizer has more parameters or a witness was frozen; whether that was so."""
        if self._parameters == _count(self._optimizers) and all(p.requires_grad for p in self._witnesses):
            return False
        self._watch()
        return True

    @property
    def pending(self) -> bool:
        """Whether an optimizer has gradients that wait for its step. A step that GradScaler skips does not count: its
        batch counts with the next one.
        """
        if self._waiting and self._stepped:
            self.expose("an optimizer steps while another one's gradients wait for its own step")
        return bool(self._waiting)

    def boundary(self) -> bool:
        """A boundary counts; returns whether members are, or have been, torn while collectives run.

        If one is lost then, all go back to their last commit. Logged once, by rank 0.
        """
        at_step, self._at_step = self._at_step, None
        self._stepped.clear()
        if at_step is not None and at_step != self._collectives():
            self.expose(
                "a collective runs between an optimizer's step and the boundary (a metric, a second optimizer's "
                "backward pass, LBFGS; call state.check_host_updates() before it where you can)"
            )
        return self._late

    def clear(self) -> None:
        """The gradients are gone, and so is the step that was under way."""
        self._waiting.clear()
        self._stepped.clear()
        self._at_step = None

    def begin(self) -> None:
        """A step begins, before it changes anything. Optimizers of torch are watched; for others, call this."""
        self._before_step()  # it may raise: then no step has begun
        self.begun += 1
        if self._at_step is None and not self._late:
            self._at_step = self._collectives()

    def come_last(self) -> None:
        """Have steps begin behind the hooks that the script has registered since: these may change gradients."""
        for handle in self._before:
            hooks = handle.hooks_dict_ref()
            if hooks is not None and next(reversed(hooks), handle.id) != handle.id:
                hooks.move_to_end(handle.id)

    def expose(self, reason: str) -> None:
        """Take note that members are torn at times at which others may be lost; logged once, by rank 0."""
        if self._late:
            return
        self._late = True
        if context.assignment().rank == 0:
            logger.warning(
                "%s: a failure there leads back to the last commit; edriver adds commits to the script's own now and "
                "then",
                reason,
            )

    def _watch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._before = [], []
        self._parameters = _count(self._optimizers)
        self._witnesses = []
        for place, optimizer in enumerate(self._optimizers):
            self._before.append(optimizer.register_step_pre_hook(self._called))
            self._handles.append(self._before[-1])
            self._handles.append(optimizer.register_step_post_hook(functools.partial(self._made, place)))
            learning = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.is_leaf]
            some = (*learning[:: -(-len(learning) // WITNESSES_PER_OPTIMIZER) or 1], *learning[-1:])
            for parameter in {id(p): p for p in some}.values():
                accumulated = functools.partial(self._accumulated, place)
                hook = parameter.register_post_accumulate_grad_hook(accumulated)
                self._handles.append(hook)
                self._witnesses.append(parameter)

    def _accumulated(self, place: int, _parameter: torch.Tensor) -> None:
        self._waiting.add(place)

    def _called(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Count the step, or have its closure do so; returns its new arguments, the optimizer first, or None."""
        if is_nested(optimizer):
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._beginning_after(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._beginning_after(args[1]), *args[2:]), kwargs
        self.begin()
        return None

    def _beginning_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        begun = False

        def evaluate() -> Any:
            nonlocal begun
            loss = closure()
            if not begun:
                begun = True
                self.begin()
            return loss

        return evaluate

    def _made(self, place: int, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[Any, Any]) -> None:
        if is_nested(optimizer):
            return
        self._stepped.add(place)
        self._waiting -= self._stepped


def come_first(handle: RemovableHandle) -> None:
    """Have a hook be called before all others of its kind."""
    if (hooks := handle.hooks_dict_ref()) is not None:
        hooks.move_to_end(handle.id, last=False)


def _count(optimizers: list[Optimizer]) -> int:
    return sum([len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups])
