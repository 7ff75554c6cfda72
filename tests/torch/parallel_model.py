"""A model with tensor parallelism inside its shards: a transformer's block, over a mesh of three dimensions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from edriver.worker.state.sharded_state import ShardedState

WIDTH = 8

HEADS = 4

LENGTH = 6


class Attention(torch.nn.Module):
    """Of the heads that this worker has."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, _ = tokens.shape
        query, key, value = (
            part(tokens).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)))


class Block(torch.nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = torch.nn.Linear(WIDTH, 12), torch.nn.Linear(12, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + torch.as_tensor(self.down(torch.nn.functional.gelu(self.up(self.norm(tokens)))))


PLAN: dict[str, Any] = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}

SEQUENCE_PLAN: dict[str, Any] = {
    "1": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
    "1.norm": SequenceParallel(),
    "1.up": ColwiseParallel(input_layouts=Shard(1)),
    "1.down": RowwiseParallel(),
}
"""Of a feed-forward layer whose norm works on a part of the sequence."""


class FeedForward(torch.nn.Module):
    """Works on a part of the sequence, and on all of it in between."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 12), torch.nn.Linear(12, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.down(torch.nn.functional.gelu(self.up(self.norm(tokens)))))


def plain_model(seed: int = 3) -> torch.nn.Sequential:
    """The whole of it."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, WIDTH), Block(), Block(), torch.nn.Linear(WIDTH, 3))


def parallel_model(mesh: DeviceMesh, seed: int = 3) -> torch.nn.Sequential:
    """Over a mesh of the dimensions "replicate", "shard" and "tensor"."""
    model = plain_model(seed)
    data = mesh["replicate", "shard"]
    for block in (model[1], model[2]):
        parallelize_module(block, mesh["tensor"], PLAN, src_data_rank=None)
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)
    return model


def sequence_parallel_model(mesh: DeviceMesh, seed: int = 3) -> torch.nn.Sequential:
    """The same dimensions; between two linear layers each worker of "tensor" has a part of the sequence."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), FeedForward(), torch.nn.Linear(WIDTH, 3))
    data = mesh["replicate", "shard"]
    parallelize_module(model, mesh["tensor"], SEQUENCE_PLAN, src_data_rank=None)
    fully_shard(model[1], mesh=data)
    fully_shard(model, mesh=data)
    return model


class Gathered(torch.autograd.Function):
    """The parts of a sequence that all workers along a dimension have, joined along dimension 2."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, context: DeviceMesh) -> torch.Tensor:
        ctx.context = context
        parts = [torch.empty_like(part) for _ in range(context.size())]
        dist.all_gather(parts, part.contiguous(), group=context.get_group())
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        whole = gradients[0].contiguous()
        dist.all_reduce(whole, group=ctx.context.get_group())
        return whole.chunk(ctx.context.size(), 2)[ctx.context.get_local_rank()], None


class ContextAttention(torch.nn.Module):
    """Attention of a part of a sequence to all of it; where no mesh is given, the part is the whole."""

    def __init__(self, context: DeviceMesh | None) -> None:
        super().__init__()
        self.context = context
        self.into, self.out = torch.nn.Linear(4, 3 * WIDTH, bias=False), torch.nn.Linear(WIDTH, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, _ = tokens.shape
        query, key, value = (
            each.view(batch, length, HEADS, -1).transpose(1, 2) for each in self.into(tokens).split(WIDTH, -1)
        )
        if self.context is not None:
            key, value = (Gathered.apply(each, self.context) for each in (key, value))  # type: ignore[no-untyped-call]
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)))


def context_parallel_model(mesh: DeviceMesh, seed: int = 3) -> ContextAttention:
    """Over a mesh of the dimensions "replicate", "shard" and "context"."""
    torch.manual_seed(seed)
    model = ContextAttention(mesh["context"])
    fully_shard(model, mesh=mesh["replicate", "shard"])
    return model


def tokens_of(step: int) -> torch.Tensor:
    """The same on every rank."""
    return torch.randn(2, LENGTH, 4, generator=torch.Generator().manual_seed(step))


def train_step(state: ShardedState) -> None:
    """One step of a training of these models, and its boundary."""
    state.optimizer.zero_grad()
    state.model(tokens_of(state.step)).square().sum().backward()
    state.clip_grad_norm_(0.5)
    state.optimizer.step()
    state.step += 1
    state.check_host_updates()


class Stage(torch.nn.Module):
    """One of two stages of a pipeline: the first has the block's attention, the second what comes after it."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last
        self.layers = plain_model()[2:] if last else plain_model()[:2]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layers(tokens))


def stage(mesh: DeviceMesh) -> Stage:
    """This worker's, over a mesh of the dimensions "replicate", "pipeline" and "shard"."""
    made = Stage(last=mesh.get_local_rank("pipeline") == 1)
    data = mesh["replicate", "shard"]
    for layer in made.layers.children():
        fully_shard(layer, mesh=data)
    fully_shard(made, mesh=data)
    return made
