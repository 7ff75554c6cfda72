"""A script for Lightning in elastic mode, which writes down what each worker did."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset, Subset

import edriver
from edriver.integrations.lightning import ElasticTrainer
from edriver.worker import context

KIND = os.environ.get("KIND", "automatic")
SAMPLES = int(os.environ.get("SAMPLES", "96"))
BATCH = 4
PAUSE = float(os.environ.get("PAUSE", "0"))
KILL = os.environ.get("KILL", "").split(",")  # where, at which step and which workers die
record = Path(f"worker-{os.environ['EDRIVER_WORKER_ID']}.jsonl").open("a")  # noqa: SIM115


def write(what: str, module: lightning.LightningModule, **more: Any) -> None:
    """One more line."""
    trainer = module.trainer
    line = {
        "what": what,
        "at": time.time(),
        "round": str(context.assignment().round_id),
        "rank": edriver.rank(),
        "size": edriver.size(),
        "host": trainer.node_rank,
        "hosts": trainer.num_nodes,
        "validates": trainer.distributed_sampler_kwargs,
        "pid": os.getpid(),
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "batch": trainer.fit_loop.batch_idx,
        **more,
    }
    print(json.dumps(line), file=record, flush=True)


def die(where: str, module: lightning.LightningModule) -> None:
    """Die here, if that is wanted."""
    here = f"{where}:{module.global_step}:{os.environ['EDRIVER_WORKER_ID']}"
    if here in KILL and not module.trainer.sanity_checking:
        write("killed", module)
        os.kill(os.getpid(), signal.SIGKILL)


class Points(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Points and their sums, each with its number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.arange(4.0) * (index % 7) / 7
        return index, x, x.sum()


class Line(lightning.LightningModule):
    """A line through points."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        self.automatic_optimization = KIND != "manual"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sums."""
        return self.net(x).squeeze(-1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor | None:
        """The loss; in manual optimization the whole step."""
        numbers, x, y = batch
        assert self.training
        time.sleep(PAUSE)
        write("took", self, samples=numbers.tolist())
        loss = torch.nn.functional.mse_loss(self(x), y)
        self.log("loss", loss.detach(), on_step=True, on_epoch=True, sync_dist=True)
        self.log("samples", float(len(numbers)), on_step=False, on_epoch=True, sync_dist=True, reduce_fx="sum")
        die("step", self)
        if self.automatic_optimization:
            return loss
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer.step()
        scheduler.step()
        return None

    def on_train_batch_end(self, *_: Any) -> None:
        """A step."""
        write("stepped", self, lr=self.lr_schedulers().get_last_lr()[0])

    def on_train_epoch_start(self) -> None:
        """An epoch begins."""
        write("epoch start", self)

    def on_train_epoch_end(self) -> None:
        """An epoch ends."""
        die("epoch", self)
        write("epoch end", self)

    def validation_step(self, batch: Any, index: int) -> None:
        """The loss there."""
        die("validation", self)
        _, x, y = batch
        self.log("val", torch.nn.functional.mse_loss(self(x), y), sync_dist=True)
        held = "HOLD" in os.environ and not Path("enough").exists()  # then each epoch is better than the one before
        self.log("no better", -1.0 - self.current_epoch if held else 1e6, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """A validation ends."""
        write("sanity" if self.trainer.sanity_checking else "validation", self)

    def configure_optimizers(self) -> Any:
        """AdamW, and a rate that falls with each step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Logged(Callback):
    """Writes down what the epoch's metrics were."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """They are there."""
        write("metrics", pl_module, samples=trainer.callback_metrics["samples"].item())


options: dict[str, Any] = {
    "automatic": {"gradient_clip_val": 1.0},
    "accumulate": {"accumulate_grad_batches": 3},
    "manual": {},
    "bf16": {"precision": "bf16-mixed"},
    "steps": {"max_steps": 20},
}[KIND]
stopping = EarlyStopping("no better", patience=int(os.environ.get("PATIENCE", "99")))
checkpoint = ModelCheckpoint("saved", monitor="val", save_last=True)
trainer = ElasticTrainer(
    **{"max_epochs": int(os.environ.get("EPOCHS", "3")), **options},
    accelerator="cpu",
    logger=CSVLogger("logs"),
    log_every_n_steps=1,
    enable_progress_bar=False,
    callbacks=[stopping, checkpoint, Logged()],
)
dataset = Points()
sampler = edriver.ElasticSampler(dataset)
model = Line()
state = trainer.elastic_state(model, sampler)


@edriver.run
def train(state: edriver.TorchState) -> None:
    """One round."""
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {trainer.global_step}", flush=True)
    mine = Subset(dataset, range(edriver.rank(), 16, edriver.size()))  # what this worker validates
    trainer.fit(model, DataLoader(dataset, batch_size=BATCH, sampler=sampler), DataLoader(mine, batch_size=BATCH))


train(state)
if edriver.rank() >= 0:  # a worker that came too late has trained nothing
    digest = hashlib.sha256()
    for value in model.parameters():  # BatchNorm's statistics are rank 0's only after the next forward pass
        digest.update(value.detach().numpy().tobytes())
    write(
        "done",
        model,
        digest=digest.hexdigest(),
        wait=stopping.wait_count,
        best=checkpoint.best_model_score.item(),
        best_path=checkpoint.best_model_path,
        callbacks=[type(each).__name__ for each in trainer.callbacks],
    )
