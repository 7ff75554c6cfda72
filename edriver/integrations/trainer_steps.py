"""Steps of the same samples whatever the number of workers, in a Trainer.

Trainer's loop draws all batches of a step before it computes the first, and counts those of this worker to know where a
step ends. Here the loader knows, so `_run_steps` is the loop, with the same calls of what scripts override, and of
callbacks, in the same order. Trainer divides by the number of a step's items, which it counts beforehand; here each
micro-batch is divided by its own, and weighs as much.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from transformers.trainer import GreedyLR

from edriver.integrations.trainer_round import RoundTrainer
from edriver.worker.accumulation.global_batch import Step


class StepsTrainer(RoundTrainer):
    """A Trainer that has a loop over the steps of a GlobalBatch."""

    _counted: dict[int, tuple[int, float]]  # of each micro-batch of the step under way: tokens, and operations
    _start_time: float
    _tr_loss: torch.Tensor

    def __init__(self, *args: Any, global_batch: bool, **kwargs: Any) -> None:
        super().__init__(*args, global_batch=global_batch, **kwargs)
        self._counted = {}

    def _run_steps(self, model: Any, epoch: int, loader: Any, trial: Any, ignore_keys_for_eval: Any) -> None:
        """Train the rest of an epoch, as Trainer's `_run_epoch` does."""
        grad_norm = learning_rate = None
        begins = True
        for inputs in loader:
            if begins:
                self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
            step: Step = self.accelerator.under_way
            begins = step.is_last  # the next one
            self._compute(model, inputs, step)
            if not step.is_last:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
                continue
            self._count(step)
            grad_norm = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
            grad_norm = self._get_grad_norm(model, grad_norm=grad_norm)
            self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
            self.optimizer.step()
            self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
            learning_rate = self._get_learning_rate()
            by_metric = isinstance(self.lr_scheduler, (torch.optim.lr_scheduler.ReduceLROnPlateau, GreedyLR))
            if not self.accelerator.optimizer_step_was_skipped and not by_metric:
                self.lr_scheduler.step()
            model.zero_grad()
            self.state.global_step += 1
            self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
            arguments = model, trial, epoch, ignore_keys_for_eval, self._start_time
            self._maybe_log_save_evaluate(self._tr_loss, grad_norm, *arguments, learning_rate=learning_rate)
            # Other workers may have had no substep in which a callback could ask for that: all stop behind a step.
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        arguments = model, trial, epoch, ignore_keys_for_eval, self._start_time
        self._maybe_log_save_evaluate(self._tr_loss, grad_norm, *arguments, learning_rate=learning_rate)

    def _compute(self, model: Any, inputs: Any, step: Step) -> None:
        """Make the forward and the backward pass of a micro-batch."""
        if step.number is not None:
            self._counted[step.number] = self._own_tokens(inputs), float(self.floating_point_ops(inputs))
        self.current_gradient_accumulation_steps = 1  # by which losses are divided that no number of items divides
        with self._own_items():
            items = self._get_num_items_in_batch([inputs], self.args.device)
            divided = self.loss_is_scaled_for_ga
            if divided is None:
                divided = (self.model_accepts_loss_kwargs and items is not None) or self.compute_loss_func is not None
            if items is not None:
                self.accelerator.weight = items if divided else None
                items = torch.as_tensor(items).clamp(min=1)
            self.training_step(model, inputs, items)

    @contextlib.contextmanager
    def _own_items(self) -> Iterator[None]:
        """Have Trainer count the items of this worker alone, and not multiply losses by the number of workers."""
        before, self.args.average_tokens_across_devices = self.args.average_tokens_across_devices, False
        try:
            yield
        finally:
            self.args.average_tokens_across_devices = before

    def _own_tokens(self, inputs: Any) -> int:
        """The number of tokens in inputs, as Trainer counts them."""
        before, self.state.num_input_tokens_seen = self.state.num_input_tokens_seen, 0
        accelerator: Any = self.accelerator
        accelerator.gather = lambda tensor: tensor  # which would add those of the others
        try:
            self._track_num_input_tokens(inputs)
            return int(self.state.num_input_tokens_seen)
        finally:
            del accelerator.gather
            self.state.num_input_tokens_seen = before

    def _count(self, step: Step) -> None:
        """All gradients of a step are there: add up its losses, tokens and operations."""
        loss = step.loss()
        if self.args.logging_nan_inf_filter and not math.isfinite(loss):
            self._tr_loss += self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged)
        else:
            self._tr_loss += loss
        counted = [self._counted[number] for number in step.done]
        self._counted = {}
        self.current_flos += sum(operations for _, operations in counted)
        if self.args.include_num_input_tokens_seen != "no":
            tokens = torch.tensor(sum(tokens for tokens, _ in counted), device=self.args.device)
            self.state.num_input_tokens_seen += int(self.accelerator.gather(tokens).sum())
