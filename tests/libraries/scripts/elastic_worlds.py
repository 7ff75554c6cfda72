"""Training scripts of libraries in elastic mode, as workers of tests/torch/elastic_world.py run them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

import edriver
from edriver.integrations.accelerate import ElasticAccelerator
from edriver.integrations.transformers import ElasticTrainer
from tests.libraries.points import Points, layers
from tests.torch.elastic_world import Fate
from tests.torch.fingerprint import fingerprint
from tests.torch.kinds_of_training import STEPS, batch_of, new_model

EVAL_SAMPLES = 8


def accelerated(fate: Fate) -> str:
    """Accumulated gradients, bf16, clipping and a schedule. The data is the same on all ranks."""
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    state = edriver.TorchState(model, optimizer, schedule=schedule, step=0)

    @edriver.run
    def loop(state: edriver.TorchState) -> None:
        accelerator = ElasticAccelerator(
            cpu=True,
            mixed_precision="bf16",
            step_scheduler_with_optimizer=False,  # else it steps once for each worker
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2),
        )
        assert (accelerator.process_index, accelerator.num_processes) == (edriver.rank(), edriver.size())
        model, optimizer, schedule = accelerator.prepare(state.model, state.optimizer, state.schedule)
        assert accelerator.prepare(model) is model
        assert accelerator.prepare(state.model) is model
        assert not isinstance(model.module, torch.nn.parallel.DistributedDataParallel)
        while state.step < STEPS:
            fate.before(state.step)
            for half in range(2):
                with accelerator.accumulate(model):
                    loss = model(batch_of(2 * state.step + half)).square().mean()
                    assert loss.dtype == torch.float32
                    loss.register_hook(lambda _: fate.meets(state.step, "backward"))
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                        fate.meets(state.step, "optimizer")
                    optimizer.step()
                    optimizer.zero_grad()
                if half == 0:
                    state.check_host_updates()  # does not count: gradients wait
            schedule.step()
            state.step += 1
            state.check_host_updates()

    loop(state)
    return fingerprint(state)


class Surface(torch.nn.Module):
    """A model of them, which knows what it was trained on since its last step."""

    def __init__(self, fate: Fate) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = layers()
        self.taken: list[int] = []
        self.step = 0
        self._fate = fate

    def forward(self, x: torch.Tensor, labels: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the prediction."""
        self._fate.meets(self.step, "forward" if self.training else "evaluate")
        if self.training:
            self.taken += index.tolist()
        prediction = self.layers(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(prediction, labels), "logits": prediction}


class Witness(TrainerCallback):
    """Writes down each step of this process, and is where a worker may die."""

    def __init__(self, fate: Fate, model: Surface, folder: Path) -> None:
        self._fate = fate
        self._model = model
        self._file = folder / f"{os.getpid()}.log"

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A round begins."""
        self._model.taken, self._model.step = [], state.global_step
        assert (args.process_index, args.world_size) == (edriver.rank(), edriver.size())
        assert state.is_world_process_zero == (edriver.rank() == 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins."""
        self._fate.before(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients are there."""
        self._fate.meets(state.global_step, "optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is done."""
        with self._file.open("a") as log:
            rate = kwargs["lr_scheduler"].get_last_lr()[0]
            print(state.global_step, edriver.size(), state.epoch, rate, *self._model.taken, file=log)
        self._model.taken, self._model.step = [], state.global_step
        self._fate.meets(state.global_step, "step_end")

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Something is logged."""
        self._fate.meets(state.global_step, "log")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint has been written."""
        self._fate.meets(state.global_step, "save")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch is over."""
        self._fate.meets(state.global_step, "epoch_end")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All is over."""
        self._fate.meets(state.global_step, "train_end")


def trainer(
    fate: Fate, folder: Path, options: dict[str, Any], samples: int = 64, patience: int = 0, resume: str | None = None
) -> dict[str, Any]:
    """Train; returns what is the same on all ranks."""
    model = Surface(fate)
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder / "checkpoints"),
            "per_device_train_batch_size": 4,
            "logging_steps": 2,
            "save_strategy": "no",
            "learning_rate": 0.02,
            "disable_tqdm": True,
            "remove_unused_columns": False,
            "use_cpu": True,
            "ddp_find_unused_parameters": False,
            **options,
        }
    )
    stopping = EarlyStoppingCallback(patience, early_stopping_threshold=10.0)
    one = ElasticTrainer(
        model=model,
        args=arguments,
        train_dataset=Points(samples),
        eval_dataset=Points(EVAL_SAMPLES),
        callbacks=[Witness(fate, model, folder)],
    )
    if patience:
        one.add_callback(stopping)
    output = one.train(resume_from_checkpoint=resume)
    return {
        "parameters": [p.tolist() for p in model.parameters()],
        "steps": (output.global_step, one.state.global_step, one.state.max_steps),
        "epoch": one.state.epoch,
        "history": [(entry["step"], *sorted(entry)) for entry in one.state.log_history],
        "losses": [round(entry["loss"], 4) for entry in one.state.log_history if "loss" in entry],
        "callbacks": [type(callback).__name__ for callback in one.callback_handler.callbacks],
        "patience": stopping.early_stopping_patience_counter,
        "best": (one.state.best_global_step, one.state.best_model_checkpoint),
    }


def refused(make: Any, *words: str) -> None:
    """Such a call raises one sentence with these words."""
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value


def trainer_refusals(fate: Fate, folder: Path) -> None:
    """Arguments that cannot be used; the world around it gets an empty run."""

    def made(dataset: Any = None, **options: Any) -> ElasticTrainer:
        arguments = TrainingArguments(str(folder), use_cpu=True, **options)
        return ElasticTrainer(
            model=Surface(fate), args=arguments, train_dataset=Points(8) if dataset is None else dataset
        )

    refused(lambda: made(auto_find_batch_size=True), "auto_find_batch_size=True", "restart mode")
    refused(lambda: made(train_sampling_strategy="group_by_length"), "group_by_length", "restart mode")
    refused(lambda: made(fsdp=True), "fsdp", "edriver --mode restart")
    refused(lambda: made(accelerator_config={"split_batches": True}), "split_batches")
    refused(lambda: made(enable_jit_checkpoint=True), "enable_jit_checkpoint", "restart mode")
    refused(lambda: made(max_steps=1, dataset=iter_only()).train(), "train_dataset has no length")
    run_empty()


def iter_only() -> Any:
    """A dataset without a length."""

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(8))

    return Stream()


def run_empty() -> None:
    """A run in which nothing is done."""
    edriver.run(lambda state: None)(edriver.ObjectState())


def trainer_overridden(fate: Fate, folder: Path) -> None:
    """A trainer whose loader is not this run's, and one whose loader is."""

    class Own(ElasticTrainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(DataLoader(self.train_dataset, batch_size=2))

    class Right(ElasticTrainer):
        def get_train_dataloader(self) -> Any:
            loader = DataLoader(self.train_dataset, batch_size=4, sampler=self._get_train_sampler())
            return self.accelerator.prepare(loader)

    def made(cls: Any) -> ElasticTrainer:
        arguments = TrainingArguments(
            str(folder),
            use_cpu=True,
            max_steps=2,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            per_device_train_batch_size=4,
        )
        return cls(model=Surface(fate), args=arguments, train_dataset=Points(16))

    assert made(Right).train().global_step == 2


def loaders(fate: Fate) -> None:
    """A loader with an ElasticSampler is not sharded again; another is, and metrics have each sample once."""
    sampler = edriver.ElasticSampler(range(10), shuffle=False)
    state = edriver.TorchState(torch.nn.Linear(1, 1), sampler=sampler)

    @edriver.run
    def loop(state: edriver.TorchState) -> None:
        accelerator = ElasticAccelerator(cpu=True)
        state.sampler.set_epoch(3)
        loader = accelerator.prepare(DataLoader(range(10), batch_size=4, sampler=state.sampler))
        assert len(loader) == 3
        seen, ends = [], []
        for index, batch in enumerate(loader):
            seen += accelerator.gather_for_metrics(batch).tolist()
            ends.append(accelerator.gradient_state.end_of_dataloader)
            state.sampler.record_batch(index, 4)
        assert seen == list(range(10))
        assert ends == [False, False, True]
        assert state.sampler.epoch == 3
        assert not accelerator.gradient_state.in_dataloader
        state.sampler.set_epoch(4)
        assert len(list(loader)) == 3
        plain = accelerator.prepare(DataLoader(range(10), batch_size=4))
        gathered = [sample for batch in plain for sample in accelerator.gather_for_metrics(batch).tolist()]
        assert sorted(gathered) == list(range(10))
        accelerator.wait_for_everyone()

    loop(state)


def refusals(fate: Fate) -> None:
    """What shards the model is refused."""
    state = edriver.TorchState(torch.nn.Linear(1, 1))

    @edriver.run
    def loop(state: edriver.TorchState) -> None:
        refused(lambda: ElasticAccelerator(fsdp_plugin=object()), "fsdp_plugin", "edriver --mode restart")
        refused(lambda: ElasticAccelerator(deepspeed_plugin=object()), "deepspeed_plugin")
        refused(
            lambda: ElasticAccelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)), "split_batches"
        )
        os.environ["ACCELERATE_USE_FSDP"] = "true"
        refused(lambda: ElasticAccelerator(), "ACCELERATE_USE_FSDP=true")

    loop(state)


def outside(fate: Fate) -> None:
    """There is no accelerator without a round."""
    refused(lambda: ElasticAccelerator(cpu=True), "inside the function that edriver.run wraps")
    run_empty()
