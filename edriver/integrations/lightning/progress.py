"""What a trainer knows beside its module and its optimizers, as attributes of a state: counters, metrics, callbacks.

Trees of plain values and small tensors, so that a boundary keeps them. `fit` resets some of it, and callbacks can take
theirs over only when their `setup` was called; so what is loaded, or held, waits until `put_back`.
"""

from __future__ import annotations

import abc
import operator
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync

from edriver.integrations.lightning.back_references import OwnerOfParts
from edriver.worker import context

_CHECKPOINT_ATTRIBUTES = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""What ModelCheckpoint's state_dict lacks. A save is a collective, so all ranks must agree on whether one is due."""

_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_META_MORE = ("dataloader_idx", "metric_attribute")


class TrainerPart(abc.ABC):
    """One attribute of the state.

    Args:
        trainer: whose part it is.
    """

    def __init__(self, trainer: OwnerOfParts) -> None:
        self.trainer = trainer
        self.waiting: Any = None

    def state_dict(self) -> Any:
        """What waits to be put back, else what the trainer has."""
        return self.read() if self.waiting is None else self.waiting

    def load_state_dict(self, tree: Any) -> None:
        """Have this put back by the next `fit`."""
        self.waiting = tree

    def hold(self) -> None:
        """Have what the trainer has now put back, unless something waits already."""
        self.waiting = self.state_dict()

    def put_back(self) -> None:
        """Write what waits."""
        if self.waiting is not None:
            tree, self.waiting = self.waiting, None
            self.write(tree)

    @abc.abstractmethod
    def read(self) -> Any:
        """The tree."""

    @abc.abstractmethod
    def write(self, tree: Any) -> None:
        """Bring the trainer to a tree."""


class Counters(TrainerPart):
    """How far the loops have got."""

    def _trackers(self) -> list[Any]:
        fit = self.trainer.fit_loop
        epoch = fit.epoch_loop
        optimizer = epoch.automatic_optimization.optim_progress.optimizer
        progresses = (
            fit.epoch_progress,
            epoch.batch_progress,
            epoch.scheduler_progress,
            optimizer.step,
            optimizer.zero_grad,
            epoch.manual_optimization.optim_step_progress,
            epoch.val_loop.batch_progress,
        )
        return [tracker for progress in progresses for tracker in (progress.total, progress.current)]

    def read(self) -> Any:
        """Plain numbers."""
        epoch = self.trainer.fit_loop.epoch_loop
        return {
            "at": epoch.at,
            "counts": [tuple(vars(tracker).values()) for tracker in self._trackers()],
            "last_batch": epoch.batch_progress.is_last_batch,
            "stepped": epoch._batches_that_stepped,
            "stop": self.trainer.should_stop,
        }

    def write(self, tree: Any) -> None:
        """Set the loops' counters, and where they resume."""
        epoch = self.trainer.fit_loop.epoch_loop
        epoch.at = epoch.resume = tree["at"]
        for tracker, counts in zip(self._trackers(), tree["counts"], strict=True):
            vars(tracker).update(zip(vars(tracker), counts, strict=True))
        epoch.batch_progress.is_last_batch = tree["last_batch"]
        epoch._batches_that_stepped = tree["stepped"]
        self.trainer.should_stop = tree["stop"]


class Metrics(TrainerPart):
    """The values logged last, and those that this rank has gathered for epoch-level values of the current epoch.

    Each worker gathers its own: a newcomer takes over the names, because reducing them is a collective, but not the
    gathered values.
    """

    def read(self) -> Any:
        """Metrics by name; for each epoch-level value its description, what was gathered, and of how many samples."""
        connector = self.trainer._logger_connector
        gathered = {
            key: (
                _described(metric.meta),
                metric.value if metric.is_tensor else None,
                getattr(metric, "cumulated_batch_size", None),
            )
            for key, metric in self.trainer.fit_loop.epoch_loop._results.items()
            if metric.meta.on_epoch and not metric.has_reset
        }
        return {
            "callback": dict(connector._callback_metrics),
            "logged": dict(connector._logged_metrics),
            "bar": dict(connector._progress_bar_metrics),
            "hook": connector._current_fx,
            "gathered": gathered,
            "by": context.worker_seed(),
        }

    def write(self, tree: Any) -> None:
        """Set them; `mid_epoch` of the loop says whether the epoch is under way, so the counters go first."""
        epoch = self.trainer.fit_loop.epoch_loop
        connector = self.trainer._logger_connector
        connector._callback_metrics = tree["callback"]
        connector._logged_metrics = tree["logged"]
        connector._progress_bar_metrics = tree["bar"]
        epoch.val_loop._results.reset()  # a validation that was interrupted starts again
        if not epoch.mid_epoch:
            return
        connector._current_fx = tree["hook"]
        connector._first_loop_iter = False  # or the next `log` would take its batch for the epoch's first
        for key, (description, value, samples) in tree["gathered"].items():
            metric = epoch._results.get(key)
            if metric is None:
                metric = epoch._results[key] = self._result(description)
            if metric.is_tensor and tree["by"] == context.worker_seed():
                metric.value = value
                if samples is not None:
                    metric.cumulated_batch_size = samples
            metric.to(self.trainer.strategy.root_device)
            metric._update_count = 1
            metric._computed = None
            metric.has_reset = False

    def _result(self, description: tuple[Any, ...]) -> _ResultMetric:
        reduction, should, operation, rank_zero_only, *fields = description
        meta = _Metadata(reduce_fx=getattr(torch, reduction), **dict(zip(_META + _META_MORE, fields, strict=True)))
        meta.sync = _Sync(fn=self.trainer.strategy.reduce, _should=should, _op=operation, rank_zero_only=rank_zero_only)
        metric = _ResultMetric(meta, is_tensor=meta.metric_attribute is None)
        if not metric.is_tensor:
            metric.value = operator.attrgetter(meta.metric_attribute)(self.trainer.lightning_module)
        return metric


def _described(meta: _Metadata) -> tuple[Any, ...]:
    sync = meta.sync
    fields = [getattr(meta, name) for name in _META + _META_MORE]
    return (meta.reduce_fx.__name__, sync.should, sync.op, sync.rank_zero_only, *fields)


class Callbacks(TrainerPart):
    """The states of the trainer's callbacks."""

    def read(self) -> Any:
        """The state_dict of each callback, by its state_key, and what is missing there."""
        return {each.state_key: (each.state_dict(), _more_of(each)) for each in self.trainer.callbacks}

    def write(self, tree: Any) -> None:
        """Have callbacks load theirs."""
        for callback in self.trainer.callbacks:
            state, more = tree.get(callback.state_key, ({}, {}))
            if state:
                callback.load_state_dict(state)
            vars(callback).update(more)


def _more_of(callback: Callback) -> dict[str, Any]:
    if not isinstance(callback, ModelCheckpoint):
        return {}
    return {name: getattr(callback, name) for name in _CHECKPOINT_ATTRIBUTES}
