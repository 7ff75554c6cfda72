"""A small training job that says where it is; each test tells it by variables what else to do."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import edriver
from tests.process.scripts import death

if "CHECKPOINT" in os.environ:
    import torch.distributed.checkpoint
start_quickly()

STEPS = int(os.environ.get("STEPS", "40"))  # steps of an epoch in a world of one
EPOCHS = int(os.environ.get("EPOCHS", "3"))
ENDLESS = STEPS * EPOCHS > 3000  # the test ends it: leave the processor to processes that start
PAUSE = float(os.environ.get("PAUSE", "0.05" if ENDLESS else "0.01"))
PRINT_EVERY = int(os.environ.get("PRINT_EVERY", "5"))  # steps
BATCH = 4
torch.manual_seed(0)

data = TensorDataset(torch.randn(STEPS * BATCH, 8), torch.randint(0, 2, (STEPS * BATCH,)))
# Two values for each channel of a sample: the last batch of an epoch may be a single one.
normed = (torch.nn.Unflatten(1, (8, 2)), torch.nn.BatchNorm1d(8), torch.nn.Flatten())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), *normed, torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())
sampler = edriver.ElasticSampler(data)
every = int(os.environ.get("EVERY", "10"))
disk: dict[str, Any] = {"checkpoint": os.environ["CHECKPOINT"], "every": every} if "CHECKPOINT" in os.environ else {}
state = edriver.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, steps=0, **disk)
criterion = torch.nn.CrossEntropyLoss()
hold = threading.Event()


def fault(name: str) -> bool:
    """Whether the variable of this name asks for this fault at this step and of this rank."""
    wanted = os.environ.get(name)
    return wanted is not None and state.steps == 8 and (wanted == "all" or int(wanted) == edriver.rank())


@edriver.run
def train(state: edriver.TorchState) -> str:
    death.arrange("DIE_LATER")
    assert edriver.size() != int(os.environ.get("BAD_SIZE", "0")), f"cannot be divided by {edriver.size()}"
    ddp = DistributedDataParallel(state.model)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=int(os.environ.get("LOADERS", "0")))
    group = dist.new_group() if "SUBGROUP" in os.environ else None
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    while state.epoch < EPOCHS:
        sampler.set_epoch(state.epoch)
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(ddp(x), y)
            loss.backward()
            optimizer.step()
            if group is not None:
                dist.all_reduce(torch.ones(1), group=group)
            if fault("RAISE"):
                raise ValueError("the script's own mistake")
            if fault("EXEC"):
                os.execvp("sleep", ["sleep", "3600"])
            if fault("INTERRUPT"):
                os.kill(os.getpid(), signal.SIGINT)
            if fault("EXIT"):
                sys.exit(0)
            if fault("FORK"):
                if (child := os.fork()) == 0:
                    sys.exit(0)
                print(f"rank {edriver.rank()} forked, {os.waitpid(child, 0)[1]}", flush=True)
            if fault("HANG"):
                print(f"rank {edriver.rank()} hangs", flush=True)
                hold.wait()
            time.sleep(PAUSE)
            sampler.record_batch(index, BATCH)
            state.steps += 1
            state.report(loss=loss.item())
            if "REPORTS" in os.environ and edriver.rank() == 0:
                with Path(os.environ["REPORTS"]).open("a") as file:
                    file.write(f"{state.steps} {loss.item()!r}\n")
            state.commit()
            if state.steps % PRINT_EVERY == 0:
                print(f"rank {edriver.rank()} passed step {state.steps}", flush=True)
        state.epoch += 1
    return "trained"


death.arrange("DIE_AT_FIRST")
outcome = train(state)
print(
    f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} is done: {outcome} to step {state.steps}", flush=True
)
if "TWICE" in os.environ:

    @edriver.run
    def tune(again: edriver.ObjectState) -> str:
        print(f"rank {edriver.rank()} of {edriver.size()} tunes from {again.turn}", flush=True)
        while again.turn < int(os.environ["TWICE"]) or edriver.size() < 2:  # however long a replacement takes
            dist.barrier()
            time.sleep(0.01)
            again.turn += 1
            again.commit()
        return "tuned"

    print(f"rank {edriver.rank()} then: {tune(edriver.ObjectState(turn=0))}", flush=True)
if "AFTER" in os.environ:
    if edriver.rank() == 1:
        os.abort()
    try:
        dist.barrier()
    except RuntimeError:
        print(f"rank {edriver.rank()}: the collective after run is severed", flush=True)
end_quickly()
