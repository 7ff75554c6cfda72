"""A training job that writes down how often each sample was trained on. It ends after the epoch in which the file
`enough` is there."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import edriver

start_quickly()

SAMPLES = 480  # and batches of 4 by one or two ranks: no epoch's last row needs padding
BATCH = 4

data = TensorDataset(torch.arange(SAMPLES))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
sampler = edriver.ElasticSampler(data)
# Of all ranks, in the state: what a lost step has trained on is taken back with it.
state = edriver.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, trained=torch.zeros(SAMPLES), epoch=0, steps=0, enough=False
)


@edriver.run
def train(state: edriver.TorchState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    while not state.enough:
        sampler.set_epoch(state.epoch)
        for index, (samples,) in enumerate(loader):
            counts = torch.zeros(SAMPLES)
            counts[samples] += 1
            dist.all_reduce(counts)
            optimizer.zero_grad()
            model(torch.ones(1)).sum().backward()
            optimizer.step()
            state.trained += counts
            time.sleep(0.02)
            sampler.record_batch(index, BATCH)
            state.steps += 1
            state.commit()
        state.epoch += 1
        enough = torch.tensor(float(Path("enough").exists()))
        dist.broadcast(enough, 0)
        state.enough = bool(enough)


train(state)
if edriver.rank() == 0:
    Path("trained").write_text(json.dumps({"epochs": state.epoch, "trained": state.trained.int().tolist()}))
end_quickly()
