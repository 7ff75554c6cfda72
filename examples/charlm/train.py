"""A small GPT on the source text of Python's own standard library, with an elastic run; characters, not tokens.

python train.py                                                                        on its own, or
edriver -np 2 --min-np 1 --host-discovery-script ./discover_hosts.sh python train.py   on hosts that come and go
"""

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import edriver

VOCABULARY = 128
"""ASCII; other characters of the sources become question marks."""

CONTEXT = 96
"""Characters that the model sees, and predicts, at a time."""

TEXT_BYTES = 3_000_000
"""How much of the standard library is read: the same files in the same order on every worker."""


class Windows(Dataset[Tensor]):
    """The text, cut into windows of CONTEXT characters and the one that follows."""

    def __init__(self, text: bytes) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self._text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self._text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()


def read_text() -> bytes:
    """The beginning of the standard library's sources."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace").encode("ascii", "replace")
        if len(text) >= TEXT_BYTES:
            break
    return bytes(text[:TEXT_BYTES])


class Block(nn.Module):
    """A transformer's layer: attention to what came before, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width / heads)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        changed: Tensor = x + self.mlp(self.before_mlp(x))
        return changed


class GPT(nn.Module):
    """Characters (batch, length) to the scores of the next ones (batch, length, VOCABULARY)."""

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1])
        scores: Tensor = self.head(self.blocks(self.characters(text) + self.positions(places)))
        return scores


@edriver.run
def train(state: edriver.TorchState, dataset: Windows, options: argparse.Namespace) -> None:
    """Called once in each round, in the same process. What must outlast a round is in the state."""
    rank, size = edriver.rank(), edriver.size()
    workers = "1 worker" if size == 1 else f"{size} workers"
    print(f"rank {rank} of {size} is process {os.getpid()}", flush=True)
    if rank == 0:
        log(options, event="round", workers=size)
    model = DistributedDataParallel(state.model, init_sync=False)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(dataset, options.batch_size, sampler=state.sampler)
    while True:
        state.sampler.set_epoch(state.epoch)
        for batch_idx, windows in enumerate(loader):
            if state.step == options.steps:  # asked first: a round may begin after the last step
                return
            scores = model(windows[:, :-1]).flatten(0, 1)
            loss = criterion(scores, windows[:, 1:].flatten())
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
            state.report(loss=loss.item())
            if rank == 0:
                log(options, workers=size, epoch=state.epoch, step=state.step, loss=loss.item())
                if state.step % 20 == 0:
                    print(f"step {state.step} loss {loss.item():.2f} ({workers})", flush=True)
            state.step += 1
            state.sampler.record_batch(batch_idx, options.batch_size)
            if state.step % options.commit_every == 0:
                state.commit()  # a lost worker costs the steps since the last of these
            else:
                state.check_host_updates()  # where hosts that come and go are let in and out; no copy is made
        state.epoch += 1
        state.commit()


@torch.no_grad()
def written(model: nn.Module, prompt: str, length: int) -> str:
    """The prompt and what the model writes after it."""
    generator = torch.Generator().manual_seed(0)
    text = torch.tensor([list(prompt.encode("ascii"))])
    for _ in range(length):
        scores = model(text[:, -CONTEXT:])[:, -1] / 0.8
        text = torch.cat([text, torch.multinomial(scores.softmax(-1), 1, generator=generator)], dim=1)
    return bytes(text[0].tolist()).decode("ascii")


def log(options: argparse.Namespace, **record: object) -> None:
    """Append a record to the log that plot_rounds.py draws."""
    if options.log:
        with options.log.open("a") as file:
            file.write(json.dumps({"time": time.time(), **record}) + "\n")


def parse_options() -> argparse.Namespace:
    """The flags; every worker has the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--commit-every", type=int, default=10, metavar="STEPS", help="(default: %(default)s)")
    parser.add_argument("--log", type=Path, help="append JSON lines for plot_rounds.py to this file")
    return parser.parse_args()


def main() -> None:
    """Train, then let rank 0 write something."""
    options = parse_options()
    torch.manual_seed(0)
    dataset = Windows(read_text())
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    state = edriver.TorchState(model, optimizer, sampler=edriver.ElasticSampler(dataset), epoch=0, step=0)
    train(state, dataset, options)
    if edriver.rank() == 0:
        print(written(model, "def ", 400), flush=True)


if __name__ == "__main__":
    main()
