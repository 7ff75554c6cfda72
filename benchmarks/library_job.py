"""A training job written for each library that trains elastically, and without any. Prints a time after each step."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import edriver
from benchmarks.horovod_job import WIDTH, model_of, passed

BATCH = 4
SAMPLES = 300_000
"""As many as a run can want: 4 minutes."""


class Ones(Dataset[Any]):
    """What each sample is does not matter."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(WIDTH)


def native() -> None:
    """A loop of one's own."""
    model = model_of()

    @edriver.run
    def train(state: Any) -> None:
        wrapped = DistributedDataParallel(state.model, init_sync=False)
        for batch in DataLoader(Ones(), batch_size=BATCH):
            state.optimizer.zero_grad()
            torch.autograd.backward(wrapped(batch).square().mean())
            state.optimizer.step()
            state.step += 1
            state.check_host_updates()
            passed(edriver.rank(), edriver.size(), state.step)

    train(edriver.TorchState(model, torch.optim.SGD(model.parameters(), lr=1e-3), step=0))


def accelerate() -> None:
    """A loop of one's own with an Accelerator."""
    from edriver.integrations.accelerate import ElasticAccelerator

    model = model_of()

    @edriver.run
    def train(state: Any) -> None:
        accelerator = ElasticAccelerator(cpu=True)
        model, optimizer = accelerator.prepare(state.model, state.optimizer)
        for batch in DataLoader(Ones(), batch_size=BATCH):
            optimizer.zero_grad()
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            state.step += 1
            state.check_host_updates()
            passed(edriver.rank(), edriver.size(), state.step)

    train(edriver.TorchState(model, torch.optim.SGD(model.parameters(), lr=1e-3), step=0))


def trainer() -> None:
    """Hugging Face's Trainer."""
    from transformers import TrainerCallback, TrainingArguments

    from edriver.integrations.transformers import ElasticTrainer

    class Batches(Ones):
        def __getitem__(self, index: int) -> Any:
            return {"x": torch.ones(WIDTH)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model_of()

        def forward(self, x: torch.Tensor) -> Any:
            return {"loss": self.layers(x).square().mean()}

    class Passed(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            passed(edriver.rank(), edriver.size(), state.global_step)

    arguments = TrainingArguments(
        tempfile.gettempdir(),  # which is there already; nothing is saved
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=BATCH,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
    )
    ElasticTrainer(Model(), arguments, train_dataset=Batches(), callbacks=[Passed()]).train()


def lightning() -> None:
    """Lightning's Trainer."""
    import lightning as pl

    from edriver.integrations.lightning import ElasticTrainer

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model_of()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.layers(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Passed(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            passed(edriver.rank(), edriver.size(), trainer.global_step)

    one = ElasticTrainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Passed()],
    )
    model, sampler = Module(), edriver.ElasticSampler(Ones(), shuffle=False)
    state = one.elastic_state(model, sampler)

    @edriver.run
    def train(_: Any) -> None:
        one.fit(model, DataLoader(Ones(), batch_size=BATCH, sampler=sampler))

    train(state)


def keras() -> None:
    """Keras with its torch backend."""
    import keras as k

    import edriver.keras as hvd

    class Pairs(Ones):
        def __getitem__(self, index: int) -> Any:
            return torch.ones(WIDTH), torch.zeros(WIDTH)

    class Passed(k.callbacks.Callback):
        step = 0

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            Passed.step += 1
            passed(hvd.rank(), hvd.size(), Passed.step)

    hvd.init()
    model = k.Sequential([k.Input((WIDTH,)), *(k.layers.Dense(WIDTH) for _ in range(8))])
    model.compile(optimizer=hvd.DistributedOptimizer(k.optimizers.SGD(1e-3)), loss="mse")
    sampler = hvd.elastic.ElasticSampler(Pairs(), shuffle=False)

    @hvd.elastic.run
    def train(state: Any) -> None:
        loader = DataLoader(Pairs(), batch_size=BATCH, sampler=sampler)
        callbacks = [
            hvd.elastic.RecordBatchCallback(loader),
            hvd.elastic.UpdateBatchStateCallback(state),
            Passed(),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=10**6),
        ]
        model.fit(loader, shuffle=False, callbacks=callbacks, verbose=0)

    train(hvd.elastic.KerasState(model, sampler=sampler, batch=0, epoch=0))


if __name__ == "__main__":
    {"native": native, "accelerate": accelerate, "trainer": trainer, "lightning": lightning, "keras": keras}[
        sys.argv[1]
    ]()
