"""A script in the shape of nanoGPT's: RANK says whether there are others, rank 0 writes ckpt.pt, and all load it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from dies import after_step
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

OUT = Path("out")
MAX_ITERS, EVAL_INTERVAL, BLOCK = 12, 4, 8


class Block(torch.nn.Module):
    """Attention and two layers, of a language of 16 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        inner = self.words(x)
        mask = torch.triu(torch.ones(BLOCK, BLOCK, dtype=torch.bool), 1)
        seen, _ = self.attention(inner, inner, inner, attn_mask=mask, need_weights=False)
        return torch.nn.functional.cross_entropy(self.head(seen).flatten(0, 1), y.flatten())


ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group(backend="gloo")
rank = int(os.environ.get("RANK", "0"))
OUT.mkdir(exist_ok=True)
torch.manual_seed(1337 + rank)
data = torch.arange(1024) % 16
model = Block()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
iter_num = 0
if (OUT / "ckpt.pt").exists():
    checkpoint = torch.load(OUT / "ckpt.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
raw = model
if ddp:
    model = DDP(model)
print(f"rank {rank} begins at step {iter_num}", flush=True)
while iter_num < MAX_ITERS:
    starts = torch.randint(len(data) - BLOCK - 1, (4,))
    x = torch.stack([data[i : i + BLOCK] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in starts])
    loss = model(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num % EVAL_INTERVAL == 0 and rank == 0:
        saved = {"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(saved, OUT / "ckpt.pt")
    after_step(iter_num)
if ddp:
    destroy_process_group()
print(f"rank {rank} is done at step {iter_num}", flush=True)
