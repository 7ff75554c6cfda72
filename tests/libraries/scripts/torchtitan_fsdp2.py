"""torchtitan's trainer and its smallest Llama, sharded by FSDP2; edriver keeps its checkpoints."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import recipe
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torchtitan.components import metrics
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import parallel_dims
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.tools import utils
from torchtitan.trainer import Trainer

import edriver

STEPS = int(sys.argv[1])
VOCABULARY = 2048

# Without an accelerator torchtitan takes CUDA for granted. With this as its device module, it trains on the CPU.
cpu = SimpleNamespace(
    current_device=lambda: 0,
    empty_cache=lambda: None,
    get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: SimpleNamespace(total_memory=1),
    memory_stats=lambda _: {},
    reset_peak_memory_stats=lambda: None,
    set_device=torch.cpu.set_device,
    synchronize=torch.cpu.synchronize,
)
for module in (dist_utils, metrics, parallel_dims, utils):
    module.device_type, module.device_module = "cpu", cpu
if not hasattr(dist, "set_timeout"):  # torch 2.13 has it by another name
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout


class InMemory(CheckpointManager):
    """torchtitan's checkpoints, kept by edriver."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """torchtitan's."""

    def _load(self, step: int = -1) -> bool:
        self.checkpoints = edriver.checkpoints.Checkpoints(self.folder, every_memory=5)
        loaded = self.checkpoints.load(self.states) is not None or super()._load(step)
        recipe.begins(self.states["train_state"].step)
        return loaded

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        self.checkpoints.save(curr_step, self.states)
        recipe.made(curr_step)
        return last_step and super()._save(curr_step, last_step)


class Tokens(torch.utils.data.IterableDataset):
    """Random tokens of one rank. A loader that is given its state goes on within them."""

    def __init__(self, rank: int, length: int) -> None:
        self.generator, self.length = torch.Generator().manual_seed(rank), length

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Inputs with their positions, and labels."""
        while True:
            tokens = torch.randint(VOCABULARY, (self.length + 1,), generator=self.generator)
            yield {"input": tokens[:-1], "positions": torch.arange(self.length)}, tokens[1:]

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.generator.set_state(state["generator"])


@dataclasses.dataclass(kw_only=True, slots=True)
class Data(ParallelAwareDataloader.Config):
    """Batches of random tokens."""

    def build(
        self, *, dp_rank: int, dp_world_size: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> ParallelAwareDataloader:
        """torchtitan's loader."""
        return ParallelAwareDataloader(Tokens(dp_rank, seq_len), dp_rank, dp_world_size, batch_size=local_batch_size)


@dataclasses.dataclass(kw_only=True, slots=True)
class NoTokenizer(BaseTokenizer.Config):
    """The data are tokens already."""

    def build(self, **_: Any) -> None:
        """Nothing."""


model = model_registry("debugmodel", attn_backend="flex")
for layer in model.model.layers:
    layer.attention.inner_attention = ScaledDotProductAttention.Config()  # FlexAttention has no backward on CPUs
trainer = Trainer.Config(
    model_spec=model,
    dump_folder=".",
    tokenizer=NoTokenizer(),
    dataloader=Data(),
    loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
    optimizer=default_adamw(lr=1e-3),
    lr_scheduler=LRSchedulersContainer.Config(warmup_steps=10),
    training=TrainingConfig(local_batch_size=1, seq_len=16, steps=STEPS, mixed_precision_param="float32"),
    parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),  # the default raises with torch 2.13
    checkpoint=InMemory.Config(enable=True, folder="checkpoints"),
    debug=DebugConfig(seed=1),
).build()
for part in trainer.model_parts[0].modules():
    if isinstance(part, FSDPModule):
        part.set_force_sum_reduction_for_comms(True)  # Gloo has no PREMUL_SUM
trainer.train()
moments = [moment for each in trainer.optimizers for of_one in each.state.values() for moment in of_one.values()]
recipe.ends(trainer.step, [*trainer.model_parts[0].parameters(), *moments])
trainer.close()
dist.destroy_process_group()
