"""TorchState: models, optimizers, schedulers and samplers, beside plain objects.

Each attribute whose value has a handler (`edriver.worker.handlers`) is captured and loaded through it; the
others are plain data, as in ObjectState, in which tensors may occur. A save copies all tensors, at memory
speed, into buffers that were allocated by the first one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from edriver.worker.accumulation import Accumulation
from edriver.worker.handlers import StateHandler, handler_for
from edriver.worker.snapshot import IMMUTABLES, SnapshotBuffers, TakeOver
from edriver.worker.state import ObjectState, check_names


class TorchState(ObjectState):
    """A state with a model and an optimizer.

        state = TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0)

    Restoring and syncing write into the tensors that are there, so whatever refers to a parameter, to an
    optimizer's state or to an attribute's tensor goes on to. After a restore all gradients are None. A
    model may be wrapped in DistributedDataParallel inside the training function, also as `state.model =
    DistributedDataParallel(state.model)`: the wrapper is taken off again at the start of the next round.

    Args:
        model: the model. May be set later.
        optimizer: its optimizer. May be set later.
        objects: everything else, by name: schedulers, samplers, more models, plain data.

    Raises:
        TypeError: a value cannot be kept (FSDP, ZeroRedundancyOptimizer, DTensor, DistributedSampler), and
            why.
        ValueError: a name starts with an underscore or is one of this class's own.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: Optimizer | None = None, **objects: Any
    ) -> None:
        object.__setattr__(self, "_handlers", {})
        object.__setattr__(self, "_names", ())
        self._buffers = SnapshotBuffers()
        self._accumulation = Accumulation()
        for name, value in objects.items():
            _refuse_hidden(name, value)
        super().__init__(model=model, optimizer=optimizer, **objects)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._names:
            handler = None if type(value) in IMMUTABLES else handler_for(value)
            if handler is None:
                self._handlers.pop(name, None)
            else:
                self._handlers[name] = handler
        object.__setattr__(self, name, value)
        if name in self._names and isinstance(value, Optimizer):
            self._accumulation.watch(h.value for h in self._handlers.values() if isinstance(h.value, Optimizer))

    def half_done(self) -> bool:
        """Whether gradients have been accumulated since the last step of any of the state's optimizers."""
        return self._accumulation.pending

    def save(self) -> None:
        """Copy everything aside.

        Raises:
            TypeError: an attribute cannot be copied.
        """
        self._saved = self._buffers.copied(self._capture())

    def restore(self) -> None:
        """Go back to what was saved last; in any case, set all gradients to None."""
        self.clear_gradients()
        if self._saved is not None:
            self._load(self._saved)

    def reset(self) -> None:
        """Split samplers anew, and take last round's DistributedDataParallel wrappers off."""
        for name, handler in self._handlers.items():
            handler.reset()
            if getattr(self, name) is not handler.value:
                object.__setattr__(self, name, handler.value)

    def clear_gradients(self) -> None:
        """Set the gradients of all models and optimizers to None."""
        for handler in self._handlers.values():
            handler.clear_gradients()
        self._accumulation.clear()

    def _capture(self) -> dict[str, Any]:
        """For each name, whether its value has a handler, and its captured state or the value itself."""
        tree: dict[str, Any] = {}
        for name in self._names:
            handler = self._handlers.get(name)
            tree[name] = (False, getattr(self, name)) if handler is None else (True, handler.capture())
        return tree

    def _load(self, tree: dict[str, Any]) -> None:
        """Take over a tree of `_capture`'s form, without keeping a reference to any part of it."""
        check_names(tree, self._names, "attribute")
        values = TakeOver()
        for name, (handled, part) in tree.items():
            if handled:
                self._load_handled(name, part)
            else:
                setattr(self, name, values.value(part, getattr(self, name)))

    def _load_handled(self, name: str, part: Any) -> None:
        if name not in self._handlers:
            raise ValueError(
                f"the state's {name!r} is a {type(getattr(self, name)).__name__} here and has a state of "
                "its own there: give every worker's state the same kinds of objects before edriver.run"
            )
        try:
            self._handlers[name].load(part)
        except ValueError as error:
            raise ValueError(f"the state's {name!r} cannot be brought back: {error}") from error

    def _small(self, tree: dict[str, Any]) -> dict[str, Any]:
        small = {}
        for name, (handled, part) in tree.items():
            handler = self._handlers.get(name)
            if not handled:
                small[name] = part
            elif handler is not None and (digest := handler.digest(part)) is not None:
                small[name] = digest
        return small


def _refuse_hidden(name: str, value: Any) -> None:
    """Refuse models and optimizers inside a container: as plain data they would be replaced by copies.

    Raises:
        TypeError: there is one.
    """
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in items:
        if isinstance(item, torch.nn.Module | Optimizer):
            raise TypeError(
                f"the state's {name!r} holds a {type(item).__name__} inside a {type(value).__name__}: give "
                "each model and optimizer a name of its own, or put models into a torch.nn.ModuleList"
            )
