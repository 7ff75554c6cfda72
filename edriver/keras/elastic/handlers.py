"""How a state looks after what Keras has: models, optimizers, and callbacks that remember epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import torch

from edriver.keras.elastic.fit import tensors
from edriver.keras.elastic.variable_copies import VariableCopies
from edriver.worker.copies.small_copy import Fixed
from edriver.worker.copies.snapshot import TakeOver
from edriver.worker.state.handlers import StateHandler, register_handler


class ModelHandler(StateHandler):
    """A keras.Model: all variables (weights, statistics, states of seed generators), metrics, buffers of torch modules.

    Trainable variables are those that only optimizers change. All others are copied at each boundary at which they have
    been written to.

    Attributes:
        arrived_metrics: what has arrived for metrics that Keras builds with the first batch only; None: nothing waits.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._copies = VariableCopies()
        self._metrics = VariableCopies()
        self.arrived_metrics: list[torch.Tensor] | None = None

    def capture(self) -> Any:
        """The variables in their order, the metrics, and the buffers by name."""
        return {
            "variables": tensors(self.value.variables),
            "metrics": tensors(self.value.metrics_variables),
            "buffers": dict(self.value.named_buffers()),
        }

    def load(self, tree: Any) -> None:
        """Write into the variables that are there.

        Raises:
            ValueError: the model has others; names one.
        """
        _write(self.value.variables, tree["variables"], "this model")
        own = tensors(self.value.metrics_variables)
        if [each.shape for each in own] == [each.shape for each in tree["metrics"]]:
            self.arrived_metrics = None
            _copy(own, tree["metrics"])
        else:
            self.arrived_metrics = [each.detach().clone() for each in tree["metrics"]]
        buffers = dict(self.value.named_buffers())
        if buffers.keys() != tree["buffers"].keys():
            raise ValueError("this model's torch modules have other buffers than those whose state it should load")
        _copy(list(buffers.values()), [tree["buffers"][name] for name in buffers])

    def lasting(self) -> Iterable[torch.Tensor]:
        """The trainable variables, as they are now: layers may have been frozen."""
        variables = self.value.variables
        self._copies.watch(tensors(v for v in variables if not v.trainable))
        self._metrics.watch(tensors(self.value.metrics_variables))
        return tensors(v for v in variables if v.trainable)

    def statistics(self) -> list[torch.Tensor]:
        """What this step's forward pass has written to (means and variances): it differs between ranks."""
        return [tensor for tensor in self._copies.written() if tensor.is_floating_point()]

    def keep(self) -> Any:
        """Nothing that the state would keep: the copies are made here."""
        self._copies.keep()
        self._metrics.keep()

    def bring_back(self, kept: Any) -> None:
        """Write the copies back."""
        self._copies.bring_back()
        self._metrics.bring_back()

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        for tensor in tensors(self.value.variables):
            tensor.grad = None


class KerasOptimizerHandler(StateHandler):
    """A keras.optimizers.Optimizer, that has been built.

    Single numbers (iteration, learning rate, loss scale) are copied at each boundary: callbacks change some of them.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._copies = VariableCopies()

    def capture(self) -> Any:
        """The variables, in their order."""
        return tensors(self.value.variables)

    def load(self, tree: Any) -> None:
        """Write into the variables that are there.

        Raises:
            ValueError: the optimizer has others; names one.
        """
        _write(self.value.variables, tree, "this optimizer")

    def lasting(self) -> Iterable[torch.Tensor]:
        """All variables but single numbers."""
        every = tensors(self.value.variables)
        self._copies.watch([tensor for tensor in every if tensor.dim() == 0])
        return [tensor for tensor in every if tensor.dim() > 0]

    def keep(self) -> Any:
        """Nothing that the state would keep: the copies are made here."""
        self._copies.keep()

    def bring_back(self, kept: Any) -> None:
        """Write the copies back."""
        self._copies.bring_back()


class CallbackHandler(StateHandler):
    """A Keras callback that remembers epochs: EarlyStopping, ReduceLROnPlateau, History, ModelCheckpoint.

    Keras resets them when model.fit begins. So what they held when the last epoch had ended is kept here, and put back
    once the next fit has begun.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._held: dict[str, Any] | None = None

    def note(self) -> None:
        """Note the callback's data at the end of an epoch, without its model and values that are not data."""
        self._held = {
            name: TakeOver().value(value) for name, value in vars(self.value).items() if _is_data(name, value)
        }

    def put_back(self) -> None:
        """A fit has begun: give the callback what it held."""
        if self._held is not None:
            vars(self.value).update(TakeOver().value(self._held))

    def capture(self) -> Any:
        """What it held when the last epoch had ended; None before."""
        return self._held

    def load(self, tree: Any) -> None:
        """Take over what another one held."""
        self._held = TakeOver().value(tree)

    def keep(self) -> Any:
        """Return the held data in a box, because it is replaced but never changed."""
        return Fixed(self._held)

    def bring_back(self, kept: Any) -> None:
        """Hold what was held."""
        self._held = kept.contents


register_handler(keras.Model, ModelHandler)
register_handler(keras.optimizers.Optimizer, KerasOptimizerHandler)
register_handler(keras.callbacks.Callback, CallbackHandler)

_DATA = (bool, int, float, str, type(None), np.number, np.bool_, np.ndarray)


def _is_data(name: str, value: Any) -> bool:
    if name in ("params", "model", "_model"):
        return False
    if isinstance(value, list | tuple):
        return all(_is_data("", item) for item in value)
    if isinstance(value, dict):
        return all(_is_data("", item) for item in value.values())
    return isinstance(value, _DATA)


def _write(variables: Sequence[Any], saved: Sequence[torch.Tensor], what: str) -> None:
    if len(variables) != len(saved):
        raise ValueError(
            f"{what} has {len(variables)} variables, but the one whose state it should load has {len(saved)}; all "
            "workers must build and compile the same model before KerasState"
        )
    for variable, tensor in zip(variables, saved, strict=True):
        if variable.value.shape != tensor.shape:
            raise ValueError(
                f"{what}'s variable {variable.path} has shape {tuple(variable.value.shape)} here and "
                f"{tuple(tensor.shape)} there; all workers must build the same model"
            )
    _copy(tensors(variables), saved)


def _copy(own: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(own, saved, strict=True):
            target.copy_(source)
