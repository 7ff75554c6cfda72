"""A training job that counts how often each sample is trained on, as a part of its state, and names its edriver.

At the end of an epoch rank 0 adds a line to REPORTS: how often the samples were trained on that were so the least and
the most often. The run ends with the first epoch after END is there.
"""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import edriver
from edriver.common.release import VERSION

start_quickly()

SAMPLES, BATCH = 240, 4
torch.manual_seed(0)
data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 8), torch.randn(SAMPLES, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = edriver.ElasticSampler(data)
state = edriver.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, steps=0, counts=[0] * SAMPLES, ends=False
)


@edriver.run
def train(state: edriver.TorchState) -> None:
    rank = edriver.rank()
    ddp = DistributedDataParallel(state.model)
    print(f"rank {rank} of {edriver.size()} pid {os.getpid()} of edriver {VERSION}", flush=True)
    while not state.ends:
        sampler.set_epoch(state.epoch)
        for index, (which, x, y) in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(x), y).backward()  # type: ignore[no-untyped-call]
            trained = torch.zeros(SAMPLES + 1, dtype=torch.int64)
            trained[:-1][which] += 1
            trained[-1] = Path(os.environ["END"]).exists()
            dist.all_reduce(trained)  # before the step: what fails here was not trained
            optimizer.step()
            time.sleep(0.02)
            sampler.record_batch(index, BATCH)
            state.counts = [count + more for count, more in zip(state.counts, trained[:-1].tolist(), strict=True)]
            state.steps += 1
            state.ends = bool(trained[-1])
            state.commit()
            if state.steps % 5 == 0:
                print(f"rank {rank} passed step {state.steps}", flush=True)
        if rank == 0:
            with Path(os.environ["REPORTS"]).open("a") as reports:
                reports.write(f"{state.epoch} {min(state.counts)} {max(state.counts)}\n")
        state.counts = [0] * SAMPLES
        state.epoch += 1


train(state)
end_quickly()
