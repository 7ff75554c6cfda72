"""What a victim trains: it writes each of its steps down, and ends when the file `stop` is there."""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import json
import os
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import edriver

start_quickly()

FOLDER = Path(os.environ["VICTIM"])
METRIC = os.environ.get("METRIC", "loss")
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = edriver.TorchState(model=model, optimizer=optimizer, steps=0)


def digest() -> int:
    """Equal for equal parameters."""
    return zlib.crc32(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))


def stop_requested() -> bool:
    """Whether any member has seen the file: all of them answer alike."""
    seen = torch.tensor(float((FOLDER / "stop").exists()))
    if edriver.size() > 1:
        dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return bool(seen)


@edriver.run
def train(state: edriver.TorchState) -> None:
    ddp = DistributedDataParallel(model, init_sync=False) if edriver.size() > 1 else model
    with (FOLDER / f"steps-{os.getpid()}.jsonl").open("a") as steps:
        while not stop_requested():
            optimizer.zero_grad()
            loss = ddp(torch.full((4, 8), 0.1 * (edriver.rank() + 1))).square().sum()
            loss.backward()
            optimizer.step()
            state.steps += 1
            state.report(**{METRIC: loss.item()})
            line = {"rank": edriver.rank(), "size": edriver.size(), "step": state.steps, "digest": digest()}
            steps.write(json.dumps(line) + "\n")
            steps.flush()
            state.check_host_updates()
            time.sleep(0.03)  # the processor is for the attackers, too
            if state.steps % 4 == 0:
                print(f"rank {edriver.rank()} passed step {state.steps}", flush=True)


train(state)
end_quickly()
