"""A training job whose ranks can each be slowed down while it runs, and that writes down where its time went.

A test says what a rank is to do in FOLDER/slow.RANK: `load SECONDS`, `compute SECONDS`, `native SECONDS` or `eval
SECONDS`, for each step until the file is gone; native and eval once. After each step, a rank adds a line to
FOLDER/steps.RANK: when it passed the boundary, seconds of loading, and of computing.
"""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import ctypes
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import edriver

start_quickly()

FOLDER = Path(os.environ["FOLDER"])
PAUSE = float(os.environ.get("PAUSE", "0.02"))
torch.manual_seed(0)


def wish() -> tuple[str, float]:
    """What the test wants this rank to do."""
    try:
        what, seconds = (FOLDER / f"slow.{edriver.rank()}").read_text().split()
    except (OSError, ValueError):
        return "", 0.0
    return what, float(seconds)


class Data(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        what, seconds = wish()
        if what == "load":
            time.sleep(seconds)
        return tuple(tensor[index] for tensor in self.tensors)


data = Data(torch.randn(1000, 8), torch.randn(1000, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = edriver.TorchState(model=model, optimizer=optimizer, steps=0)


def preprocess_heavily(seconds: float) -> None:
    time.sleep(seconds)


def once(what: str, seconds: float) -> None:
    """What a rank does for a long time, but only once."""
    (FOLDER / f"slow.{edriver.rank()}").unlink()
    print(f"rank {edriver.rank()} begins {what}", flush=True)
    if what == "native":
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # keeps the interpreter's lock
    else:
        with edriver.phase("eval"):
            time.sleep(seconds)


@edriver.run
def train(state: edriver.TorchState) -> None:
    ddp = DistributedDataParallel(state.model)
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    with (FOLDER / f"steps.{edriver.rank()}").open("a") as steps:
        ends = torch.zeros(())
        while not ends:
            batches = iter(DataLoader(data, batch_size=1))
            while not ends:
                began = time.monotonic()
                if (batch := next(batches, None)) is None:
                    break
                loaded = time.monotonic()
                time.sleep(PAUSE)
                what, seconds = wish()
                if what == "compute":
                    preprocess_heavily(seconds)
                elif what in ("native", "eval"):
                    once(what, seconds)
                computed = time.monotonic()
                optimizer.zero_grad()
                loss: torch.Tensor = torch.nn.functional.mse_loss(ddp(batch[0]), batch[1])
                loss.backward()  # type: ignore[no-untyped-call]
                ends.fill_((FOLDER / "end").exists())
                dist.all_reduce(ends, dist.ReduceOp.MAX)  # on all after the same step
                optimizer.step()
                state.steps += 1
                state.commit()
                steps.write(f"{time.time():.4f} {loaded - began:.5f} {computed - loaded:.5f}\n")
                steps.flush()


train(state)
end_quickly()
