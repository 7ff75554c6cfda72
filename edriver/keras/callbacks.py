"""Horovod's callbacks for Keras, beside the elastic ones."""

from __future__ import annotations

from typing import Any

import keras
import torch

from edriver.horovod import basics
from edriver.horovod.collectives.reductions import allreduce
from edriver.horovod.functions import broadcast_parameters
from edriver.keras.elastic.fit import Fit, tensors
from edriver.keras.optimizer import average_before_scaling


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all members one member's weights and optimizer variables when model.fit begins.

    An elastic script does not need it: `KerasState` is synced at the start of each round.

    Args:
        root_rank: whose they are.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        del device  # Horovod's argument
        self.root_rank = root_rank

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast. Raises MismatchError where the members have built different models."""
        average_before_scaling(self.model.optimizer)
        given = tensors([*self.model.variables, *self.model.optimizer.variables])
        broadcast_parameters([(str(at), tensor) for at, tensor in enumerate(given)], self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages an epoch's metrics over the members, for the callbacks that come after it in the list.

    Put it in front of those that decide by metrics (EarlyStopping, ReduceLROnPlateau): so all members decide alike.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device  # Horovod's argument

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average. Raises MismatchError where the members have different metrics."""
        names = sorted(name for name, value in (logs or {}).items() if isinstance(value, int | float))
        if names and basics.size() > 1:
            values = torch.tensor([float(logs[name]) for name in names], dtype=torch.float64, device="cpu")
            logs.update(zip(names, allreduce(values, name=f"metrics {', '.join(names)}").tolist(), strict=True))


class LearningRateWarmupCallback(keras.callbacks.Callback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr` over some epochs, batch by batch.

    Args:
        initial_lr: the learning rate for all members together, as in `0.001 * hvd.size()`.
        warmup_epochs: over how many epochs.
        steps_per_epoch: batches of an epoch; None: as many as model.fit knows of.
        verbose: whether rank 0 prints the learning rate when it has been reached.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, steps_per_epoch: int | None = None, verbose: int = 0
    ) -> None:
        super().__init__()
        self.initial_lr, self.warmup_epochs, self.steps_per_epoch = initial_lr, warmup_epochs, steps_per_epoch
        self.verbose = verbose
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = Fit.of(self).begin_epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate.

        Raises:
            ValueError: how many batches an epoch has is not known.
        """
        steps = self.steps_per_epoch or self.params.get("steps")
        if not steps:
            raise ValueError("LearningRateWarmupCallback needs steps_per_epoch=...: model.fit does not know it")
        done = self._epoch + (Fit.of(self).batches_before + batch + 1) / steps
        if done > self.warmup_epochs + 1 / steps:
            return
        share = min(1.0, done / self.warmup_epochs)
        size = basics.size()
        self.model.optimizer.learning_rate = self.initial_lr / size * (share * (size - 1) + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Say where it stands."""
        if self.verbose and self._epoch + 1 == self.warmup_epochs and basics.rank() == 0:
            print(f"Epoch {self._epoch + 1}: warmed up to a learning rate of {self.initial_lr:g}.")  # noqa: T201
