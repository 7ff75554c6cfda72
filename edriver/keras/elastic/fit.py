"""One call of model.fit, as the elastic callbacks in its list share it, and how it resumes within an epoch.

Keras gives all callbacks of a fit one dict of parameters; this object is in it. So whichever of the callbacks is called
first has all of them take note of a batch, and a commit is right wherever CommitStateCallback stands in the list.

A fit that resumes begins with what its epoch has left. Keras knows no epoch that is shorter than others: the loop over
its batches ends when `model.stop_training` is true. So that is set to an object that is true once, which ends this loop
and not the fit. An epoch that has no batch left still gets one from Keras, which no train step sees: what follows the
batches (validation, callbacks) is then done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import keras
import torch

_KEY = "edriver"


def tensors(variables: Iterable[Any]) -> list[torch.Tensor]:
    """What keras variables hold."""
    return [variable.value for variable in variables]


class EndOfEpoch:
    """Is true the first time it is asked: as model.stop_training it ends an epoch's batches, and not the fit."""

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        asked, self._asked = self._asked, True
        return not asked


class Fit:
    """One call of model.fit.

    Attributes:
        members: the elastic callbacks in its list.
        batches_before: the number of batches of the current epoch that were completed before this fit.
        offset: the difference between the state's number of an epoch and Keras's: a script may count on from
            `initial_epoch=state.epoch`, or begin with 0 each time, as in `epochs=EPOCHS - state.epoch`.
        left: the number of batches left in the current epoch when this fit began; None: all.
    """

    def __init__(self) -> None:
        self.members: list[ElasticCallback] = []
        self.batches_before = 0
        self.offset = 0
        self._epoch: int | None = None
        self._batch = -1
        self.left: int | None = None
        self._thread = 0

    @staticmethod
    def of(callback: Any) -> Fit:
        """The fit that a callback is in.

        Raises:
            RuntimeError: it is in none.
        """
        if callback.params is None:
            raise RuntimeError("edriver's callbacks belong in the list that model.fit is given: callbacks=[...]")
        fit: Fit = callback.params.setdefault(_KEY, Fit())
        return fit

    def begin_epoch(self, epoch: int) -> int:
        """An epoch begins, by Keras's number; returns the state's. Nothing happens the second time."""
        if epoch != self._epoch:
            first = self._epoch is None
            self._thread = threading.get_ident()
            self._epoch, self._batch, self.left, self.batches_before = epoch, -1, None, 0
            for member in self.members if first else ():
                member.training_begins(epoch)
            for member in self.members:
                member.epoch_begins(epoch)
            if first:
                self._resume()
        return epoch + self.offset

    def batch_done(self, batch: int, model: Any) -> bool:
        """A batch is done; returns whether it was one that was trained on. The second time, nothing else happens.

        Raises:
            RuntimeError: Keras calls the callbacks from another thread.
        """
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "Keras calls edriver's callbacks from a separate thread, in which a round cannot end: give model.fit "
                "a list, callbacks=[...], and not a single callback"
            )
        if batch != self._batch:
            self._batch = batch
            for member in self.members if self.left != 0 else ():
                member.batch_done(batch)
            if self.left is not None and batch + 1 >= self.left and not model.stop_training:
                model.stop_training = EndOfEpoch()
        return self.left != 0

    def _resume(self) -> None:
        """Find out what the epoch has left, if a part of it was done before."""
        for member in sorted(self.members, key=lambda member: member.precedence):
            self.left = member.batches_left()  # the last one's word counts
        if self.left is not None:
            for member in self.members:
                member.resumes(self.left)


class ElasticCallback(keras.callbacks.Callback):
    """A callback that takes note of batches together with the other elastic ones in its list.

    Attributes:
        precedence: whose word counts on what an epoch has left: the highest's.
    """

    precedence = 0

    def set_params(self, params: Any) -> None:
        """Join the others of this fit: Keras calls this before anything else."""
        super().set_params(params)
        if self not in Fit.of(self).members:
            Fit.of(self).members.append(self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Have all take note of an epoch."""
        Fit.of(self).begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Have all take note of a batch."""
        Fit.of(self).batch_done(batch, self.model)

    def training_begins(self, epoch: int) -> None:
        """The fit's first epoch begins, by Keras's number."""

    def epoch_begins(self, epoch: int) -> None:
        """An epoch begins, by Keras's number."""

    def batch_done(self, batch: int) -> None:
        """A batch was trained on: its number, counted from 0 in each fit and each epoch."""

    def batches_left(self) -> int | None:
        """How many batches the fit's first epoch has left; None: nothing of it was done before."""
        return None

    def resumes(self, left: int) -> None:
        """The fit's first epoch was begun before, and has this many batches left."""

    def training_ends(self) -> None:
        """All epochs are done, or a callback has stopped the training."""


def pass_over_one_batch(model: Any) -> None:
    """Make the next train step do nothing but return the metrics."""
    train = model.train_function

    def nothing(data: Any) -> Any:
        del data
        model.train_function = train
        return model.get_metrics_result()

    model.train_function = nothing
