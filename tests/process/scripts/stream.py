"""A training job over a stream: it writes down how often each sample was trained on. Rank 1 kills itself once."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

import edriver

start_quickly()

SHARDS = list(enumerate([90, 7, 0, 60, 33, 61, 50, 12]))
BATCH = 4
KILL_AT = 8


def read(shard: tuple[int, int]) -> Iterator[int]:
    number, length = shard
    for at in range(length):
        yield number * 1000 + at


stream = edriver.ElasticStream(SHARDS, read)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
# Of all ranks, in the state: what a lost step has trained on is taken back with it.
state = edriver.TorchState(model=model, optimizer=optimizer, stream=stream, trained=torch.zeros(8, 100), steps=0)
loader = stream.loader(batch_size=BATCH, num_workers=2, persistent_workers=True)


@edriver.run
def train(state: edriver.TorchState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    for batch in loader:
        counts = torch.zeros_like(state.trained)
        if state.steps == KILL_AT and edriver.rank() == 1 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for sample in batch.tolist():
            counts[sample // 1000, sample % 1000] += 1
        dist.all_reduce(counts)
        optimizer.zero_grad()
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        state.trained += counts
        state.steps += 1
        state.commit()


train(state)
if edriver.rank() == 0:
    Path("trained").write_text(json.dumps(state.trained.int().tolist()))
end_quickly()
