"""The callbacks that make model.fit elastic: they count what is done, and pass boundaries. Their order is free.

An epoch's end is a separate boundary, passed once its last callback is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from edriver.keras.elastic.fit import ElasticCallback, Fit, pass_over_one_batch
from edriver.keras.elastic.state import KerasState
from edriver.keras.optimizer import average_before_scaling
from edriver.worker import context
from edriver.worker.sampler.elastic_sampler import ElasticSampler


class CommitStateCallback(ElasticCallback):
    """Passes a boundary after every batch, and commits the state at some of them.

    After an epoch's last callback, when the next epoch begins or the fit ends, it passes another boundary with a
    commit, so that an epoch ends exactly once.

    Args:
        state: the state.
        batches_per_commit: the number of batches per commit; after the other batches it calls
            `state.check_host_updates()`, which costs next to nothing and keeps a failure from losing a step.

    Raises:
        TypeError: `state` is not a KerasState.
        ValueError: batches_per_commit is less than 1.
    """

    def __init__(self, state: KerasState, batches_per_commit: int = 1) -> None:
        super().__init__()
        if not isinstance(state, KerasState):
            raise TypeError(f"CommitStateCallback takes a KerasState, not a {type(state).__name__}")
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}: commit with every batch, 1, or less often")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0
        self._epochs = 0
        self._metrics: list[torch.Tensor] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count.

        Raises:
            RuntimeError: the model has another optimizer than the state.
        """
        if self.model.optimizer is not self.state.optimizer:
            raise RuntimeError(
                "the model has another optimizer than the state, so what the model learns would not be kept: call "
                "model.compile outside of the function that elastic.run wraps, before KerasState"
            )
        average_before_scaling(self.model.optimizer)
        self._batches = self._epochs = 0
        self._metrics = self.state.metric_values()  # Keras resets them next

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """End the epoch before."""
        super().on_epoch_begin(epoch, logs)
        if self._epochs:
            self._commit()
        else:
            self.state.put_back_callbacks()
        self._epochs += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Pass a boundary.

        Raises:
            HostsUpdatedInterrupt: all members stop here for a change of hosts.
            PeerLostError: a member of this round is lost.
        """
        if not Fit.of(self).batch_done(batch, self.model):
            return
        self._batches += 1
        if self._batches >= self.batches_per_commit:
            self._batches = 0
            self.state.commit()
        else:
            self.state.check_host_updates()

    def on_train_end(self, logs: Any = None) -> None:
        """End the last epoch."""
        for member in Fit.of(self).members:
            member.training_ends()
        if self._epochs:
            self._commit()
        else:  # they have been reset all the same
            self.state.put_back_callbacks()

    def resumes(self, left: int) -> None:
        """Let the metrics continue."""
        self.state.put_back_metrics(self._metrics)

    def _commit(self) -> None:
        self._batches = 0
        self.state.note_callbacks()
        self.state.commit()


class UpdateEpochStateCallback(ElasticCallback):
    """Updates `state.epoch`, the number of completed epochs. Pass `initial_epoch=state.epoch` to model.fit.

    If a callback stops the training early, `state.epoch` is set to model.fit's `epochs`, so that a later call of fit
    does nothing.

    Args:
        state: the state.

    Raises:
        ValueError: the state has no attribute `epoch`.
    """

    def __init__(self, state: KerasState) -> None:
        super().__init__()
        self.state = _with(state, "epoch")

    def training_begins(self, epoch: int) -> None:
        """Find out from which number Keras counts."""
        Fit.of(self).offset = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count it."""
        self.state.epoch = Fit.of(self).offset + epoch + 1

    def training_ends(self) -> None:
        """See whether it was stopped."""
        if self.model.stop_training:
            self.state.epoch = Fit.of(self).offset + self.params["epochs"]


class UpdateBatchStateCallback(ElasticCallback):
    """Updates `state.batch`, the number of completed batches of the epoch, by which a resumed epoch is shorter.

    The sampler records which samples these batches had: without a RecordBatchCallback the data start from the
    beginning.

    Args:
        state: the state.

    Raises:
        ValueError: the state has no attribute `batch`.
    """

    precedence = 1

    def __init__(self, state: KerasState) -> None:
        super().__init__()
        self.state = _with(state, "batch")

    def training_begins(self, epoch: int) -> None:
        """Continue from the state; later epochs are complete."""
        Fit.of(self).batches_before = self.state.batch

    def batch_done(self, batch: int) -> None:
        """Count it."""
        self.state.batch = Fit.of(self).batches_before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Start again."""
        self.state.batch = 0

    def batches_left(self) -> int | None:
        """What `steps_per_epoch`, or the length of the data, leaves."""
        steps = self.params.get("steps")
        return max(0, steps - self.state.batch) if self.state.batch and steps else None

    def resumes(self, left: int) -> None:
        """Prevent a train step if no batch is left."""
        if left == 0 and max(member.precedence for member in Fit.of(self).members) == self.precedence:
            pass_over_one_batch(self.model)


class RecordBatchCallback(ElasticCallback):
    """Records each batch of model.fit's DataLoader in its ElasticSampler, so that a resumed epoch has what remains.

    It also starts the sampler's epochs, and makes `len(loader)` the length of a whole epoch, because Keras reads it
    once, when a fit begins.

    Args:
        loader: the DataLoader passed to model.fit. Its sampler must be an ElasticSampler that is part of the state.

    Raises:
        TypeError: `loader` is not a DataLoader, has another sampler, or a custom batch sampler.
    """

    precedence = 2

    def __init__(self, loader: Any) -> None:
        super().__init__()
        sampler, batch_size = getattr(loader, "sampler", None), getattr(loader, "batch_size", None)
        if not isinstance(loader, DataLoader) or not isinstance(sampler, ElasticSampler) or not batch_size:
            raise TypeError(
                "RecordBatchCallback takes the torch DataLoader that model.fit is given, made with batch_size=... and "
                "sampler=edriver.ElasticSampler(dataset)"
            )
        self._sampler = sampler
        self._batch_size: int = batch_size
        self._drop_last = loader.drop_last
        batches: Any = loader.batch_sampler
        if not isinstance(batches.sampler, _WholeEpochs):
            batches.sampler = _WholeEpochs(self._sampler, self._batches)
        self._whole: _WholeEpochs = batches.sampler

    def epoch_begins(self, epoch: int) -> None:
        """Start the epoch."""
        self._sampler.set_epoch(epoch + Fit.of(self).offset)
        self._whole.filled = False

    def batch_done(self, batch: int) -> None:
        """Record it."""
        self._sampler.record_batch(batch, self._batch_size)

    def batches_left(self) -> int | None:
        """What the sampler has left for this rank."""
        if not self._sampler.samples_done().done:
            return None
        return self._batches()

    def resumes(self, left: int) -> None:
        """Prevent a train step if no batch is left."""
        if left == 0:
            self._whole.filled = True
            pass_over_one_batch(self.model)

    def _batches(self) -> int:
        share = len(self._sampler)
        return share // self._batch_size if self._drop_last else -(-share // self._batch_size)


class _WholeEpochs(Sampler[int]):
    """An ElasticSampler as Keras is to see it.

    Args:
        elastic: the sampler.
        batches: how many batches it has left for this rank.

    Attributes:
        filled: whether an epoch without any left gives samples all the same: Keras builds metrics from a batch before
            the first epoch begins, and passes over one where an epoch has but its end left.
    """

    def __init__(self, elastic: ElasticSampler, batches: Callable[[], int]) -> None:
        self._elastic = elastic
        self._batches = batches
        self.filled = True

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self))) if self.filled and not self._batches() else iter(self._elastic)

    def __len__(self) -> int:
        """The number of samples of a whole epoch on this rank."""
        return -(-self._elastic.samples_done().samples // context.assignment().size)


def _with(state: KerasState, name: str) -> KerasState:
    if not hasattr(state, name):
        raise ValueError(f"the state has no {name!r}: make it KerasState(model, {name}=0)")
    return state
