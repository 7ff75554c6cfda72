"""Hugging Face's Trainer in edriver's rounds: `ElasticTrainer`, whose `train` survives losses in the same process.

    trainer = ElasticTrainer(model=model, args=TrainingArguments("out", max_steps=1000), train_dataset=dataset)
    trainer.train()

Trainer's own loop is called again in each round and begins where the last one ended: `_inner_training_loop` is the
function that `edriver.run` wraps, and what it would begin with (TrainerState, the schedule, the epoch) is replaced by
what the state holds. A step ends with a boundary before anything is logged, evaluated or saved. What is due then is
part of the state: a round that ends amid an evaluation leads to that evaluation again, and not back behind the step.

The log is kept at a boundary by its length. The run commits once before it is finalized, because the best model is
loaded over what a boundary keeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any, Final

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import PartialState
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput, set_seed

from edriver.integrations.trainer_progress import TrainerProgress
from edriver.integrations.trainer_round import callback_states
from edriver.integrations.trainer_steps import StepsTrainer
from edriver.worker import context
from edriver.worker.rounds.run import run
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.torch_state import TorchState
from edriver.worker.training_phase import phase

_OF_TRAINER_STATE: Final = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""What of TrainerState outlives a round. The rest follows from the arguments and the round; the log is apart."""

_OF_TRAINER: Final = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_start_time",
)
"""What of the trainer itself does: what it computes logged losses and speeds from."""


class ElasticTrainer(StepsTrainer):
    """A Trainer whose `train` is elastic: create it once per process, outside of any function that `edriver.run` wraps.

    `max_steps` counts optimizer steps of the whole run, independently of the number of workers. `num_train_epochs`
    counts data: its number of steps, and with it the length of the learning rate's schedule, follows from each round's
    number of workers. `per_device_train_batch_size` is the batch size of one worker.

    With `global_batch` a step consists of the same samples whatever the number of workers, so that steps, epochs, the
    schedule and logged losses do not depend on it: `per_device_train_batch_size * gradient_accumulation_steps` of them,
    in micro-batches of `per_device_train_batch_size`, which the workers share. See GlobalBatch. Where the model, or
    `compute_loss_func`, divides by `num_items_in_batch`, a step's gradient is that of the mean over all its items.

    Callbacks get `on_train_begin` in each round, and `on_epoch_begin` when an epoch continues. Callbacks with state
    must inherit ExportableState, as EarlyStoppingCallback does, so that the state survives.

    Args:
        args: Trainer's positional arguments.
        global_batch: whether `gradient_accumulation_steps` is the number of micro-batches in a step of all workers
            together.
        kwargs: Trainer's keyword arguments.

    Raises:
        ValueError: an argument cannot be used in elastic mode; the message names it and the alternative.
    """

    def __init__(self, *args: Any, global_batch: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, global_batch=global_batch, **kwargs)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train in one round after the other."""
        if trial is not None:
            raise ValueError("hyperparameter_search cannot be used with ElasticTrainer: use restart mode and Trainer")
        if not isinstance(self.train_dataset, Sized):
            raise ValueError(
                "train_dataset has no length, so training cannot resume in the middle of it: use a dataset with "
                "__len__ and __getitem__, or Trainer in restart mode (edriver --mode restart)"
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        shuffle = self.args.train_sampling_strategy != "sequential"
        self._sampler = ElasticSampler(self.train_dataset, shuffle=shuffle, seed=seed)
        self._progress = TrainerProgress()
        self._begins_at = 0, 0
        if resume_from_checkpoint is not None:
            self._go_to(Path(resume_from_checkpoint, TRAINER_STATE_NAME))
        if isinstance(self.optimizer, AcceleratedOptimizer):  # an earlier `train` has left it so
            self.optimizer = self.optimizer.optimizer
        state = TorchState(
            self.model,
            self.create_optimizer(),
            sampler=self._sampler,
            scaler=self.accelerator.scaler,
            progress=self._progress,
            unlogged={},  # of this worker alone
            from_rank_0=("unlogged",),
        )
        set_seed(context.worker_seed(self.args.seed) % 2**32)  # or a newcomer would draw what others have drawn

        def in_round(state: TorchState) -> TrainOutput:
            self._enter(state)
            if not any(isinstance(callback, _StepDone) for callback in self.callback_handler.callbacks):
                self.callback_handler.callbacks.insert(0, _StepDone(self))
            loop = super(ElasticTrainer, self)._inner_training_loop
            output: TrainOutput = loop(batch_size, args, resume_from_checkpoint, trial, ignore_keys_for_eval)
            return output

        try:
            output = run(in_round)(state)
        finally:
            self._elastic = None
        return self._skipped() if output is None else output

    def _pick_up(self, resume: str | None) -> str:
        """Once in a round, after `on_train_begin`: bring back what that and the loop have set to a beginning.

        Returns:
            Whose logs, evaluation and checkpoint are due: "step", "epoch" or "".
        """
        values = self._progress.values
        if self._picked_up:
            return ""
        self._picked_up = True
        if not values:
            self._start_time = time.time()
            self._load_rng_state(resume)
            return ""
        for name in _OF_TRAINER:
            setattr(self, name, values[name])
        for name, flag in values["control"].items():
            setattr(self.control, name, flag)
        unlogged = self._state().unlogged
        self._tr_loss = torch.tensor(unlogged["loss"], device=self.args.device)
        self.current_flos = unlogged["flos"] * unlogged["workers"] / context.assignment().size
        due: str = values["due"]
        return due

    # ---- a step, an epoch or the run ends

    def _run_epoch(self, model: Any, epoch: int, train_dataloader: Any, **rest: Any) -> None:
        """Train the rest of an epoch. Trainer calls this with keyword arguments."""
        due = self._pick_up(rest["resume_from_checkpoint"])
        self._sampler.set_epoch(epoch)
        self._batch = 0
        batches = len(train_dataloader)
        steps = -(-batches // self.args.gradient_accumulation_steps)
        arguments = {"model": model, "trial": rest["trial"], "ignore_keys_for_eval": rest["ignore_keys_for_eval"]}
        if due and self._is_anything_due():
            self._do_what_is_due(due, self._progress.values["logged"], epoch, **arguments)
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # as it begins: a checkpoint of the last step
        ended = self.control.should_training_stop or self.control.should_epoch_stop
        if due != "epoch" and (ended or (not batches and self._sampler.state_dict()["offset"])):
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._maybe_log_save_evaluate(self._tr_loss, None, epoch=epoch, start_time=self._start_time, **arguments)
        elif due != "epoch" and self._global_batch:
            self._run_steps(model, epoch, train_dataloader, rest["trial"], rest["ignore_keys_for_eval"])
        elif due != "epoch":
            rest |= {
                "steps_in_epoch": batches,
                "num_update_steps_per_epoch": max(1, steps),
                "resume_from_checkpoint": None,  # the sampler is where it was written
                "start_time": self._start_time,
            }
            super()._run_epoch(model=model, epoch=epoch, train_dataloader=train_dataloader, **rest)
        self._boundary("", epoch + 1, over=self.control.should_training_stop)

    def _step_done(self) -> None:
        """An optimizer step is done: its batches are, too."""
        loader: Any = self.callback_handler.train_dataloader
        if self._global_batch:
            ended = not loader.left
        else:
            for _ in range(self.current_gradient_accumulation_steps):
                self._sampler.record_batch(self._batch, self._train_batch_size)
                self._batch += 1
            ended = self._batch >= len(loader)
        done = self._sampler.samples_done()
        self.state.epoch = done.epoch + (1 if ended else done.done / done.samples)

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: int,
        ignore_keys_for_eval: Any,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """Trainer calls it after each step, and once more at an epoch's end: here is the boundary."""
        del tr_loss, start_time
        due = "step" if self.state.global_step != self._under_way()[0] else "epoch"
        norm = float(grad_norm) if grad_norm is not None and self.control.should_log else None
        logged = {"grad_norm": norm, "learning_rate": learning_rate}
        self._boundary(due, epoch, logged=logged)
        if self._is_anything_due():
            self._do_what_is_due(due, logged, epoch, model, trial, ignore_keys_for_eval)

    def _is_anything_due(self) -> bool:
        # If not, there is no second boundary, behind which what others have of an interrupted step would not count.
        return bool(self.control.should_log or self.control.should_evaluate or self.control.should_save)

    def _do_what_is_due(
        self, due: str, logged: dict[str, Any], epoch: int, model: Any, trial: Any, ignore_keys_for_eval: Any
    ) -> None:
        super()._maybe_log_save_evaluate(
            self._tr_loss,
            logged["grad_norm"],
            model,
            trial,
            epoch,
            ignore_keys_for_eval,
            self._start_time,
            learning_rate=logged["learning_rate"],
        )
        if due == "step":
            self._boundary("", epoch)

    def _boundary(self, due: str, epoch: int, logged: dict[str, Any] | None = None, over: bool = False) -> None:
        """Store the run's progress in the state, and pass a boundary.

        Args:
            due: whose logs, evaluation and checkpoint come next: "step", "epoch" or "".
            epoch: the current epoch.
            logged: the values to log then, besides the loss.
            over: whether all epochs are complete.

        Raises:
            HostsUpdatedInterrupt, PeerLostError: the round ends here.
        """
        state = self._state()
        self._progress.values = {
            "global_step": self.state.global_step,
            "epoch": epoch,
            "due": due,
            "logged": logged,
            "over": over,
            "trainer_state": {name: getattr(self.state, name) for name in _OF_TRAINER_STATE},
            "control": self.control.state()["args"],
            "callbacks": callback_states(self.callback_handler.callbacks),
            "scheduler": self.lr_scheduler.state_dict(),
            **{name: getattr(self, name) for name in _OF_TRAINER},
        }
        # Trainer, too, asks for each step's loss: logging_nan_inf_filter.
        state.unlogged = {"loss": self._tr_loss.item(), "flos": self.current_flos, "workers": context.assignment().size}
        state.check_host_updates()

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> TrainOutput:
        """The run's last metrics. All members do this; where one is lost, all do it again."""
        del start_time
        self._pick_up(None)
        self._state().commit()  # the best model is about to be loaded over what a boundary keeps
        output: TrainOutput = super()._finalize_training(trial, num_train_samples, self._start_time)
        return output

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as Trainer does; it may take as long as `--stall-timeout eval=` allows."""
        with phase("eval"):
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        return metrics

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        if skip_scheduler and self._progress.values:  # eval_on_start, and this round is not the start
            return {}
        metrics: dict[str, float] = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        return metrics

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with phase("save"):
            super()._save_checkpoint(model, trial)

    def _skipped(self) -> TrainOutput:
        """This worker came when the others were done: what follows in the script leaves what rank 0 writes to them."""
        place = PartialState()
        place.process_index = place.local_process_index = -1
        self.state.is_world_process_zero = self.state.is_local_process_zero = False
        return TrainOutput(0, math.nan, {})


class _StepDone(TrainerCallback):
    """The first callback: those after it see how much of the epoch is done."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is done."""
        del args, state, control, kwargs
        self._trainer._step_done()
