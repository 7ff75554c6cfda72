"""Lightning's training loops with edriver's boundaries in them, and with a way back to where a boundary was passed.

A boundary is passed when a batch is done, once more when it was validated after, and when an epoch is done. `at` says
which of them was the last one, and a round resumes behind it: after BATCH validation may be due, and the epoch's end;
after VALIDATED the epoch's end.

Lightning's own way to resume (`restarting`) begins where checkpoints are made, in the middle of a hook, and guesses
from counters what is left to do. It is not used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lightning.pytorch.loops.fit_loop import RestartStage, _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch.utils.data import DataLoader

from edriver.integrations.lightning.back_references import OwnerOfLoops
from edriver.model.stall_limits import Phase
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.training_phase import phase

BATCH: Final = "batch"
VALIDATED: Final = "validated"
EPOCH: Final = "epoch"


class RestOfEpoch:
    """A training loader that yields the rest of an epoch, and has the length of the whole epoch, as Lightning expects.

    Args:
        loader: the script's loader.
        sampler: the state's sampler, which the loader draws from.
        done: the number of batches of the epoch from earlier rounds.

    Raises:
        TypeError: the loader does not draw from this sampler.
    """

    def __init__(self, loader: object, sampler: ElasticSampler, done: int) -> None:
        batches = getattr(loader, "batch_sampler", None)
        if not isinstance(loader, DataLoader) or sampler not in (loader.sampler, getattr(batches, "sampler", None)):
            raise TypeError(
                "each sample is trained on once only if the training loader is a single DataLoader that draws from the "
                "sampler that trainer.elastic_state was given: DataLoader(dataset, batch_size=..., sampler=sampler); "
                "for loaders of other kinds use restart mode: edriver --mode restart"
            )
        self.sampler = sampler
        self._loader = loader
        self._done = done
        self._batch_size = loader.batch_size or getattr(batches, "batch_size", None) or 1

    def __len__(self) -> int:
        """The number of this rank's batches in the whole epoch, earlier rounds included."""
        return self._done + len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left."""
        return iter(self._loader)

    def record(self, batch_idx: int) -> None:
        """Count a batch as done, by its number in the epoch."""
        self.sampler.record_batch(batch_idx - self._done, self._batch_size)

    def close(self) -> None:
        """Let go of what belongs to the round."""


class ElasticEpochLoop(_TrainingEpochLoop):
    """Attributes:
    at: which boundary was passed last; None before the first one.
    resume: the boundary behind which this round begins, until that is done.
    """

    trainer: OwnerOfLoops
    at: str | None = None
    resume: str | None = None

    @property
    def mid_epoch(self) -> bool:
        """Whether this round resumes in an epoch that was begun in an earlier one."""
        return self.resume in (BATCH, VALIDATED)

    @property
    def done(self) -> bool:
        """Whether the epoch's batches, and what follows the last of them, are done."""
        return self.resume != BATCH and bool(super().done)

    def reset(self) -> None:
        """Start an epoch's counters again, unless the epoch is under way."""
        if not self.mid_epoch:
            super().reset()

    def on_run_start(self, data_fetcher: Any) -> None:
        """Begin, or continue."""
        super().on_run_start(data_fetcher)
        if self.resume == VALIDATED:
            self.resume = None

    def advance(self, data_fetcher: Any) -> None:
        """Train on one batch, unless this round begins with what follows one."""
        if self.resume != BATCH:
            super().advance(data_fetcher)

    def on_advance_end(self, data_fetcher: Any) -> None:
        """Pass a boundary, before what may take long and has collectives in it, and one after that."""
        if self.resume == BATCH:
            self.resume = None
        else:
            self.trainer.record_batch(self.batch_idx)
            self.pass_boundary(BATCH)
        validated = self.val_loop.batch_progress.total.ready
        with phase(Phase.EVAL):
            super().on_advance_end(data_fetcher)
        if self.val_loop.batch_progress.total.ready != validated:
            self.pass_boundary(VALIDATED)

    def pass_boundary(self, at: str) -> None:
        """Pass a boundary of this kind."""
        self.at = at
        self.trainer.pass_boundary()

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: it would swallow the loss of a peer, and end all workers where one gets SIGTERM."""


class ElasticFitLoop(_FitLoop):
    """Epochs, of which the first one of a round may be under way, and the last one done."""

    trainer: OwnerOfLoops
    epoch_loop: ElasticEpochLoop

    @property
    def _should_reload_train_dl(self) -> bool:
        """In each epoch: its length depends on how many workers there were in it."""
        return bool(self.trainer.current_epoch != self._last_train_dl_reload_epoch)

    @property
    def done(self) -> bool:
        """Whether all epochs are done, the end of the last one included."""
        return not self.epoch_loop.mid_epoch and bool(super().done)

    def run(self) -> None:
        """Train, or end a training whose last boundary was passed."""
        if self.epoch_loop.resume == EPOCH and self.done:
            self.reset()
            self.on_run_start()
            self.on_run_end()
        else:
            super().run()

    def setup_data(self) -> None:
        """Make the loader for the epoch that is next or under way."""
        self.trainer.sampler.set_epoch(self.epoch_progress.current.processed)
        super().setup_data()
        self._resuming_from_checkpoint = True  # so that the epoch loop does not begin the loader a second time

    def update_restart_stage(self) -> None:
        """Skip an epoch's start where the epoch is under way."""
        super().update_restart_stage()
        if self.epoch_loop.mid_epoch:
            self._restart_stage = RestartStage.RESTARTED_MID_EPOCH

    def reset(self) -> None:
        """Begin."""
        super().reset()
        if self.epoch_loop.resume == EPOCH:
            self.epoch_loop.resume = None

    def on_advance_end(self) -> None:
        """End an epoch, and pass a boundary, so that its hooks are not called again."""
        super().on_advance_end()
        self.epoch_loop.pass_boundary(EPOCH)
