"""A script for Lightning, which finds torchrun's environment by itself and goes on from its last checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning
import torch
from dies import after_step
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment


class Line(lightning.LightningModule):
    """A line through points."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        """The loss."""
        x, y = batch
        return torch.nn.functional.mse_loss(self.linear(x).squeeze(-1), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters())

    def on_train_start(self) -> None:
        """The checkpoint has been loaded."""
        print(f"rank {self.global_rank} begins at step {self.global_step}", flush=True)

    def on_train_batch_end(self, *_: Any) -> None:
        """One more step."""
        after_step(self.global_step)


x = torch.arange(256.0).reshape(64, 4) / 256
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=2)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=12,
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint("saved", every_n_train_steps=4, save_top_k=-1, save_last=True)],
)
assert isinstance(trainer.strategy.cluster_environment, TorchElasticEnvironment)
model = Line()
last = Path("saved/last.ckpt")
trainer.fit(model, loader, ckpt_path=str(last) if last.exists() else None)
print(f"rank {trainer.global_rank} is done at step {trainer.global_step}", flush=True)
