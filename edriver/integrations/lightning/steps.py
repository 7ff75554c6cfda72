"""Steps of the same samples whatever the number of workers: edriver.GlobalBatch in Lightning's loop.

What Lightning takes for a batch is a step of all workers: its loader has as many batches as the epoch has steps, each
of them the first micro-batch of this worker, and the closure that the optimizer calls computes that one and the others.
So all that Lightning counts in batches (limits, intervals, schedules, the progress bar) is the same on all workers, and
with any number of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult, _AutomaticOptimization
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import nn

from edriver.integrations.lightning.back_references import OwnerOfSteps
from edriver.integrations.lightning.loops import RestOfEpoch
from edriver.integrations.lightning.step_results import StepResults
from edriver.worker.accumulation.global_batch import GlobalBatch, Step
from edriver.worker.sampler.elastic_sampler import ElasticSampler


class StepsOfEpoch(RestOfEpoch):
    """A training loader that yields this worker's first micro-batch of each step that is left of an epoch.

    Args:
        loader: the script's loader.
        sampler: the state's sampler, which the loader draws from.
        done: the number of steps of the epoch from earlier rounds.
        model: the model as it is trained.
        micro_batches: in a step, of all workers together.
        zero_grad: clears the gradients, before what this worker has kept of a step is put back.

    Attributes:
        step: the current one,
        others: and its micro-batches that are to follow.

    Raises:
        TypeError: the loader does not draw from this sampler, or has no batch size.
    """

    step: Step
    others: Iterator[Any]

    def __init__(
        self,
        loader: object,
        sampler: ElasticSampler,
        done: int,
        model: nn.Module,
        micro_batches: int,
        zero_grad: Callable[[], None],
    ) -> None:
        super().__init__(loader, sampler, done)
        self._steps: GlobalBatch | tuple[()] = GlobalBatch(
            self._loader, model, size=micro_batches * (self._loader.batch_size or 1)
        )
        self._length = done + len(self._steps)
        self._zero_grad = zero_grad

    def __len__(self) -> int:
        """The number of steps in the whole epoch, earlier rounds included."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """The first micro-batches of the steps that are left."""
        for step in self._steps:
            self.step = step
            self._zero_grad()
            self.others = iter(self.step)
            yield next(self.others)

    def record(self, batch_idx: int) -> None:
        """Do nothing: a step records itself."""

    def close(self) -> None:
        """Let go of the model's wrapper."""
        self._steps = ()
        vars(self).pop("step", None)
        vars(self).pop("others", None)


class StepOptimization(_AutomaticOptimization):
    """Takes an optimizer step with all micro-batches of a step."""

    trainer: OwnerOfSteps

    def zero_grad(self) -> None:
        """Clear the gradients, with Lightning's hooks."""
        optimizer = self.trainer.optimizers[0]
        self._on_before_zero_grad(optimizer)
        self._optimizer_zero_grad(self.trainer.fit_loop.batch_idx + 1, optimizer)

    def _make_closure(self, kwargs: OrderedDict[str, Any], optimizer: torch.optim.Optimizer, batch_idx: int) -> Closure:
        return _WholeStep(self.trainer, self, kwargs, optimizer, batch_idx)


class _WholeStep(Closure):
    """Computes the gradients of a step: this worker's micro-batches, the last of which reduces them.

    Its result is that of the first micro-batch, which the hooks of a batch are called with.
    """

    def __init__(
        self,
        trainer: OwnerOfSteps,
        optimization: StepOptimization,
        first: OrderedDict[str, Any],
        optimizer: torch.optim.Optimizer,
        batch_idx: int,
    ) -> None:
        super().__init__(step_fn=optimization._training_step)
        self._trainer = trainer
        self._first = first
        self._optimizer = optimizer
        self._batch_idx = batch_idx

    @torch.enable_grad()
    def closure(self) -> ClosureResult:
        """Compute them; returns the first micro-batch's result."""
        loader, results = self._trainer.steps, self._trainer.fit_loop.epoch_loop._results
        with results.gathering():
            first = self._compute(self._first, loader.step, results)
            for batch in loader.others:  # which ends the step: see Step.computed
                self._compute(self._ready(batch), loader.step, results)
        return first

    def _ready(self, batch: Any) -> OrderedDict[str, Any]:
        """What the loop does with a batch before it is trained on."""
        trainer = self._trainer
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        trainer._logger_connector.on_batch_start(batch)
        kwargs: OrderedDict[str, Any] = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, self._batch_idx)
        return kwargs

    def _compute(self, kwargs: OrderedDict[str, Any], step: Step, results: StepResults) -> ClosureResult:
        results.begin_micro_batch(step.micro_batch_samples)
        result = self._step_fn(kwargs)
        if result.closure_loss is None:
            raise RuntimeError(
                "training_step returned None: with global_batch=True each micro-batch has a share in the step, so "
                "return a loss; one that is multiplied by 0 has nothing learned from it"
            )
        loss = step.scale(result.closure_loss, result.extra.get("loss_weight"))
        call._call_strategy_hook(self._trainer, "backward", loss, self._optimizer)
        result.closure_loss = result.loss
        return result


def micro_batches_of(options: dict[str, Any]) -> int:
    """The number of micro-batches in a step, by options of Trainer, which keep none of it.

    Raises:
        ValueError: they do not say.
    """
    given = options.pop("accumulate_grad_batches", None)
    if not isinstance(given, int) or given < 1:
        raise ValueError(
            f"global_batch=True with accumulate_grad_batches={given!r}: give the number of micro-batches in a step, of "
            "all workers together, such as accumulate_grad_batches=16"
        )
    return given


def refuse_other_loops(
    model: LightningModule, callbacks: list[Callback], optimizers: list[torch.optim.Optimizer]
) -> None:
    """Refuse what cannot be trained in steps that workers share.

    Raises:
        ValueError: the model or a callback steps by itself, or workers would wait for one another between steps.
    """
    leave_it_out = ", or leave global_batch out, for steps of accumulate_grad_batches batches of each worker"
    if not model.automatic_optimization:
        raise ValueError(
            "global_batch=True needs automatic optimization, with one optimizer: in manual optimization training_step "
            "takes the steps, so Lightning cannot share them among workers. Use automatic optimization, or "
            "edriver.GlobalBatch in a loop of your own" + leave_it_out
        )
    if is_param_in_hook_signature(model.training_step, "dataloader_iter", explicit=True):
        raise ValueError(
            "global_batch=True gives training_step one micro-batch at a time: use training_step(self, batch, "
            "batch_idx) in place of dataloader_iter" + leave_it_out
        )
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        raise ValueError(
            "global_batch=True computes each micro-batch once, and LBFGS computes a step's gradients several times: "
            "use another optimizer" + leave_it_out
        )
    if any(isinstance(part, nn.SyncBatchNorm) for part in model.modules()):
        raise ValueError(
            "global_batch=True gives workers different numbers of micro-batches, and SyncBatchNorm has them wait for "
            "one another in each: use BatchNorm, whose statistics are then those of a micro-batch" + leave_it_out
        )
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        raise ValueError(
            "GradientAccumulationScheduler changes a step's number of samples, which global_batch=True keeps: leave "
            "one of them out"
        )
