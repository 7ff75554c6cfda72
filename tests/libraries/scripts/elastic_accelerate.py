"""A loop of one's own with Accelerate in elastic mode. Writes down, for the test, what it takes and when."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import edriver
from edriver.integrations.accelerate import ElasticAccelerator

EPOCHS = int(os.environ.get("EPOCHS", "2"))
KILLS = {int(step) for step in os.environ.get("KILLS", "").split(",") if step}  # steps in which the last rank dies once
FULL = int(os.environ.get("FULL", "2"))  # with how many workers it dies
WAIT_AT = {int(step) for step in os.environ.get("WAIT_AT", "").split(",") if step}  # that fewer workers do not make
PAUSE = float(os.environ.get("PAUSE", "0"))
SAMPLES = int(os.environ.get("SAMPLES", "256"))
BATCH = 4
OUT = Path(os.environ.get("OUT", "."))
ACCUMULATE = 2


class Points(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Points on a plane."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.tensor([(index * 7 % 64) / 64, (index * 13 % 64) / 64])
        return x, x.sum(), index


def write(*fields: Any) -> None:
    """One line in this process's own file: a kill leaves it whole."""
    with (OUT / f"{os.getpid()}.log").open("a") as log:
        print(*fields, file=log)


def dies_once(step: int) -> None:
    """The process that comes first to this step is killed in it."""
    with contextlib.suppress(FileExistsError):
        (OUT / f"killed_at_{step}").touch(exist_ok=False)
        write("killed", step, time.time())
        os.kill(os.getpid(), signal.SIGKILL)


torch.manual_seed(1)
points = Points()
model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 1 / (1 + count / 1000))
sampler = edriver.ElasticSampler(points, seed=3)


@edriver.run
def train(state: edriver.TorchState) -> None:
    """One round."""
    accelerator = ElasticAccelerator(mixed_precision="bf16", gradient_accumulation_steps=ACCUMULATE, cpu=True)
    model, optimizer, scheduler, loader = accelerator.prepare(
        state.model, state.optimizer, state.scheduler, DataLoader(points, batch_size=BATCH, sampler=state.sampler)
    )
    assert accelerator.num_processes == edriver.size()
    assert accelerator.process_index == edriver.rank()
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    waiting: list[int] = []
    losses = 0.0
    while state.epoch < EPOCHS:
        state.sampler.set_epoch(state.epoch)
        for index, (x, y, taken) in enumerate(loader):
            if state.step in KILLS and edriver.size() == FULL == edriver.rank() + 1 and waiting:
                dies_once(state.step)
            while state.step in WAIT_AT and edriver.size() < FULL and not waiting:
                time.sleep(0.02)
                state.check_host_updates()
            time.sleep(PAUSE)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            waiting += taken.tolist()
            losses += loss.item()
            state.sampler.record_batch(index, BATCH)
            if accelerator.sync_gradients:
                state.step += 1
            state.check_host_updates()
            if accelerator.sync_gradients:
                seen = accelerator.gather_for_metrics(torch.ones(1)).sum().item()
                write("step", state.step, time.time(), edriver.rank(), int(seen), losses, state.epoch, *waiting)
                waiting, losses = [], 0.0
        state.epoch += 1
        state.check_host_updates()


if __name__ == "__main__":
    train(edriver.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, step=0))
    digest = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).sum(dtype=torch.float64).item()
    write("done", digest, scheduler.last_epoch)
    print(f"rank {edriver.rank()} done {digest!r} after {scheduler.last_epoch}", flush=True)
