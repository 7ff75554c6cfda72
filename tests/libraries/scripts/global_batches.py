"""Scripts of libraries whose steps have the same samples whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

import edriver
from edriver.integrations.accelerate import ElasticAccelerator
from edriver.integrations.transformers import ElasticTrainer
from tests.libraries.same_steps import (
    MICRO_BATCHES,
    Accelerated,
    Losing,
    Sequences,
    Tagger,
    TrainedByTrainer,
    values_of,
)
from tests.torch.elastic_world import Fate
from tests.torch.global_batch_training import MICRO_BATCH, SAMPLES, STEPS, Numbered, Trained


def accelerated(fate: Fate, kind: Accelerated) -> Trained:
    """Accelerate's loop."""
    model = kind.model()
    optimizer = kind.optimizer(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=kind.scaled, init_scale=256.0)
    sampler = edriver.ElasticSampler(range(SAMPLES), seed=5)
    state = edriver.TorchState(model, optimizer, scheduler=scheduler, scaler=scaler, sampler=sampler, epoch=0, step=0)
    losing = Losing(fate, kind.lost_at)
    computed: list[tuple[int, list[int]]] = []
    losses: dict[int, float] = {}

    @edriver.run
    def train(state: Any) -> None:
        accelerator = ElasticAccelerator(cpu=True, global_batch=True, gradient_accumulation_steps=MICRO_BATCHES)
        if kind.scaled:
            accelerator.scaler = state.scaler  # on a CPU Accelerate makes none
        loader: Any = DataLoader(Numbered(), MICRO_BATCH, sampler=state.sampler, drop_last=kind.drop_last)
        model, optimizer, scheduler, loader = accelerator.prepare(state.model, state.optimizer, state.scheduler, loader)
        if kind.scaled:  # so that clipping unscales
            accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
        while state.step < STEPS:
            state.sampler.set_epoch(state.epoch)
            left = len(loader)
            ends = []
            at = 0
            for numbers, inputs, labels in loader:
                if at == 0:
                    fate.before(state.step)
                assert len(loader) == left
                ends.append(accelerator.gradient_state.end_of_dataloader)
                with accelerator.accumulate(model):
                    if kind.zero_first:
                        optimizer.zero_grad()
                    computed.append((state.step, numbers.tolist()))
                    loss, count = kind.loss(state.epoch, numbers, model(inputs), labels)
                    losing.computes(state.step, at)
                    accelerator.backward(loss, weight=count if kind.ignored else None)
                    if accelerator.sync_gradients:
                        losses[state.step] = accelerator.step_loss()
                        if kind.clipped:
                            accelerator.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    scheduler.step()
                    if not kind.zero_first:
                        optimizer.zero_grad()
                at = 0 if accelerator.sync_gradients else at + 1
                state.step += accelerator.sync_gradients
                state.check_host_updates()
            assert ends == [False] * (len(ends) - 1) + [True][: len(ends)]
            assert left >= len(ends), "those of all workers, as they were left when the loop began"
            state.epoch += 1
            state.check_host_updates()

    train(state)
    return Trained([scheduler._step_count, *values_of(model, optimizer)], computed, losses)


class OnDevice(ElasticAccelerator):
    """One that has a GradScaler, as with fp16 on a GPU."""

    scaler = property(lambda self: torch.amp.GradScaler("cpu"), lambda self, value: None)


def misuse(fate: Fate) -> None:
    """What a loop may not do in the middle of a step is named."""
    sampler = edriver.ElasticSampler(range(24), shuffle=False)
    state = edriver.TorchState(nn.Linear(1, 1), sampler=sampler)

    def refused(call: Callable[[], object], words: str, error: type[Exception] = RuntimeError) -> None:
        with pytest.raises(error, match=words):
            call()

    @edriver.run
    def loop(state: Any) -> None:
        accelerator = ElasticAccelerator(cpu=True, global_batch=True, gradient_accumulation_steps=2)
        refused(lambda: accelerator.backward(torch.ones(())), r"DataLoader\(.*sampler=state\.sampler\)")
        refused(accelerator.step_loss, "inside the loop over the loader")
        plain = DataLoader(range(24), 4, sampler=state.sampler)
        loader = accelerator.prepare(plain)
        refused(lambda: next(iter(loader)), "the model is prepared before")
        model = accelerator.prepare(state.model)
        batches = iter(loader)
        loss = model(next(batches)[:, None].float()).mean()
        parameters = list(model.parameters())
        for name, call in {
            "gather": lambda: accelerator.gather(loss),
            "reduce": lambda: accelerator.reduce(loss),
            "clip_grad_norm_": lambda: accelerator.clip_grad_norm_(parameters, 1.0),
            "clip_grad_value_": lambda: accelerator.clip_grad_value_(parameters, 1.0),
        }.items():
            refused(call, f"{name} is for the last one of a step: write `if accelerator.sync_gradients:`")
        accelerator.backward(loss)
        refused(lambda: accelerator.backward(loss), "called once for each batch")
        refused(accelerator.step_loss, "after the loop")
        refused(lambda: state.sampler.record_batch(0, 4), "leave the call of record_batch out")
        next(batches)
        accelerator.gather(loss.detach())
        refused(lambda: next(batches), "each batch has its accelerator.backward")
        refused(lambda: OnDevice(cpu=True, global_batch=True), r"scaler=state\.scaler", ValueError)
        usual = ElasticAccelerator(cpu=True)
        refused(lambda: usual.backward(loss, weight=2.0), "for ElasticAccelerator.global_batch=True", TypeError)

    loop(state)


def left_in_the_middle(fate: Fate) -> None:
    """A step that a loop has left is begun anew, without the gradients that it had."""
    sampler = edriver.ElasticSampler(range(24), shuffle=False)
    state = edriver.TorchState(nn.Linear(1, 1, bias=False), sampler=sampler)

    @edriver.run
    def loop(state: Any) -> None:
        accelerator = ElasticAccelerator(cpu=True, global_batch=True, gradient_accumulation_steps=3)
        plain = DataLoader(range(24), 4, sampler=state.sampler)
        model, loader = accelerator.prepare(state.model, plain)
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch[:, None].float()).mean())
                    if batch[0] == 4:
                        break
        taken = []
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch[:, None].float()).mean())
                taken += batch.tolist()
                if accelerator.sync_gradients:
                    break
        assert taken == list(range(12))
        assert state.model.weight.grad.item() == pytest.approx(sum(taken) / 12)

    loop(state)


class Steps(TrainerCallback):
    """Tells a Tagger which step it computes; writes down rates."""

    def __init__(self, fate: Fate, model: Tagger) -> None:
        self._fate, self._model = fate, model
        self.rates: dict[int, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins."""
        self._fate.before(state.global_step)
        self._model.step, self._model.at = state.global_step, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is done."""
        self.rates[state.global_step] = kwargs["lr_scheduler"].get_last_lr()[0]


def trainer(
    fate: Fate,
    folder: Path,
    counts: bool = True,
    lost_at: tuple[int, int] | None = None,
    resume: str | None = None,
    **options: Any,
) -> TrainedByTrainer:
    """Train with padded sequences.

    Args:
        fate: the worker's.
        folder: for checkpoints.
        counts: whether the model divides by the number of tokens that count in a step, as Trainer passes it.
        lost_at: see Losing.
        resume: a checkpoint.
        options: of TrainingArguments.
    """
    model = Tagger(Losing(fate, lost_at), counts)
    steps = Steps(fate, model)
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": MICRO_BATCH,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "max_steps": STEPS,
            "logging_steps": 3,
            "save_strategy": "no",
            "learning_rate": 0.02,
            "max_grad_norm": 0.5,
            "include_num_input_tokens_seen": "non_padding",
            "disable_tqdm": True,
            "remove_unused_columns": False,
            "use_cpu": True,
            "ddp_find_unused_parameters": False,
            "report_to": [],
            **options,
        }
    )
    one = ElasticTrainer(model=model, args=arguments, train_dataset=Sequences(), global_batch=True)
    one.add_callback(steps)
    output = one.train(resume_from_checkpoint=resume)
    names = ("step", "epoch", "loss", "grad_norm", "learning_rate", "num_input_tokens_seen", "train_loss")
    return TrainedByTrainer(
        [float(x) for p in model.parameters() for x in p.detach().flatten()],
        model.computed,
        steps.rates,
        [tuple(entry[name] for name in names if name in entry) for entry in one.state.log_history],
        (output.global_step, one.state.max_steps),
        one.state.total_flos,
    )
