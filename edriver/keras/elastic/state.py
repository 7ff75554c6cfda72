"""KerasState: a Keras model and its optimizer, beside plain values, samplers and callbacks.

Trainable variables and the optimizer's tensors are watched by their version counters; all others are copied at a
boundary if they were written to (variable_copies.py).
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from edriver.keras.elastic.fit import tensors
from edriver.keras.elastic.handlers import CallbackHandler, ModelHandler
from edriver.keras.optimizer import apply_of
from edriver.worker.state.torch_state import TorchState


class KerasState(TorchState):
    """A TorchState with a Keras model and its optimizer; see `edriver.TorchState`.

        state = KerasState(model, batch=0, epoch=0, sampler=sampler, stopping=stopping)

    It holds all of the model's variables (weights, statistics of batch normalization, states of seed generators), its
    metrics, and all of the optimizer's variables. Each step of a DistributedOptimizer averages the statistics over the
    members, so that the state is the same on all of them.

    Pass callbacks with state across epochs (EarlyStopping, ReduceLROnPlateau, History) by name as well:
    CommitStateCallback then makes them continue in the next round.

    Args:
        model: the model, built and compiled.
        optimizer: the optimizer; None: the one that the model was compiled with. The constructor builds it.
        objects: all other values, by name.

    Raises:
        TypeError: `model` is not a Keras model, or `optimizer` is not a Keras optimizer.
        ValueError: the model is not built, or a name is an attribute of this class.
    """

    def __init__(self, model: Any, optimizer: Any = None, **objects: Any) -> None:
        if not isinstance(model, keras.Model):
            raise TypeError(f"KerasState takes a keras.Model, not a {type(model).__name__}")
        _refuse_unbuilt(model)
        optimizer = _in_use(optimizer, model)
        if optimizer is not None and not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(f"KerasState takes a keras.optimizers.Optimizer, not a {type(optimizer).__name__}")
        if optimizer is not None and not optimizer.built:  # so that a newcomer has places for what it receives
            optimizer.build(model.trainable_variables)
        super().__init__(model, optimizer, **objects)
        if optimizer is not None:
            apply = apply_of(optimizer)
            apply.before_step = self._steps.begin
            apply.statistics = self._model_handler().statistics

    def first_boundary(self) -> None:
        """Look for metrics, which Keras builds with the first batch."""
        self._outdated = True
        self._places.first_boundary()

    def metric_values(self) -> list[torch.Tensor]:
        """Copies of what the model's metrics hold, or of what has arrived for those that were not built then."""
        handler = self._model_handler()
        if (arrived := handler.arrived_metrics) is not None:
            handler.arrived_metrics = None
            return arrived
        return [tensor.detach().clone() for tensor in tensors(handler.value.metrics_variables)]

    def put_back_metrics(self, values: list[torch.Tensor]) -> None:
        """Give the model's metrics these values, where they are the same metrics."""
        own = tensors(self._model_handler().value.metrics_variables)
        if [each.shape for each in own] == [each.shape for each in values]:
            with torch.no_grad():
                for target, source in zip(own, values, strict=True):
                    target.copy_(source)

    def note_callbacks(self) -> None:
        """An epoch has ended: note what the state's callbacks hold."""
        for handler in self._handlers.values():
            if isinstance(handler, CallbackHandler):
                handler.note()

    def put_back_callbacks(self) -> None:
        """A fit has begun: give the state's callbacks what they held."""
        for handler in self._handlers.values():
            if isinstance(handler, CallbackHandler):
                handler.put_back()

    def _model_handler(self) -> ModelHandler:
        handler = self._handlers["model"]
        assert isinstance(handler, ModelHandler), "it was given a model"
        return handler


def _in_use(optimizer: Any, model: Any) -> Any:
    """The optimizer that model.fit calls: model.compile may have put a LossScaleOptimizer around the script's own."""
    compiled = model.optimizer
    if optimizer is None or getattr(compiled, "inner_optimizer", None) is optimizer:
        return compiled
    return optimizer


def _refuse_unbuilt(model: Any) -> None:
    # What Keras's own trainer asks: a subclassed model calls itself built while its layers are not.
    unbuilt = [layer.name for layer in model._flatten_layers() if not layer.built]
    if unbuilt:
        raise ValueError(
            f"this {type(model).__name__} is not built (layer {unbuilt[-1]!r} has no weights yet), so there is nothing "
            "to keep or to send to other workers: give it a keras.Input, or call it on a batch, before KerasState"
        )
