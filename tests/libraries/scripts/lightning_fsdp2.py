"""A script for Lightning's ModelParallelStrategy, which shards by FSDP2; edriver keeps its checkpoints."""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import recipe
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

import edriver

STEPS, SIZE = int(sys.argv[1]), int(os.environ["WORLD_SIZE"])


class InMemory(lightning.Callback):
    """Loads the newest checkpoint, and saves."""

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Its optimizers are there, and no loop has begun."""
        self.checkpoints = edriver.checkpoints.Checkpoints("checkpoints", every_memory=5)
        self.state = {"model": module, "optimizer": trainer.optimizers[0], "loop": trainer.fit_loop}
        self.checkpoints.load(self.state)
        recipe.begins(trainer.global_step)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """One more step."""
        self.checkpoints.save(trainer.global_step, self.state)
        recipe.made(trainer.global_step)


class Sums(lightning.LightningModule):
    """Learns to add."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))

    def configure_model(self) -> None:
        """Shard it."""
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, _batch: Any, _index: int) -> torch.Tensor:
        """The loss. The data is of the step: Lightning begins an epoch's data anew when it goes on within one."""
        generator = torch.Generator().manual_seed(self.global_step)
        x = torch.randn(2 * SIZE, 12, generator=generator).tensor_split(SIZE)[self.global_rank]
        return torch.nn.functional.mse_loss(self.layers(x).squeeze(-1), x.sum(1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


torch.manual_seed(1)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=SIZE,  # Lightning wants as many on each node; here they are told apart by torchrun's variables alone
    strategy=ModelParallelStrategy(data_parallel_size=SIZE, tensor_parallel_size=1),
    max_steps=STEPS,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[InMemory()],
)
model = Sums()
trainer.fit(model, torch.utils.data.DataLoader(torch.arange(100 * SIZE)))
moments = [moment for of_one in trainer.optimizers[0].state.values() for moment in of_one.values()]
recipe.ends(trainer.global_step, [*model.parameters(), *moments])
dist.destroy_process_group()
