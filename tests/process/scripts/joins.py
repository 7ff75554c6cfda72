"""A job with a model that is larger than what the heap has ready, whose workers say where they receive."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import edriver
from edriver.worker.sync.receiving import ReceivingMemory

start_quickly()
worker = os.environ["EDRIVER_WORKER_ID"]
take = ReceivingMemory.take


def say_and_take(self: ReceivingMemory, length: int) -> torch.Tensor:
    kind = "new" if self._memory is None else "ready"
    print(f"worker {worker} receives {length} bytes into {kind} memory", flush=True)
    return take(self, length)


ReceivingMemory.take = say_and_take  # type: ignore[method-assign]
torch.manual_seed(0)
model = torch.nn.Linear(1024, 4096)
optimizer = torch.optim.Adam(model.parameters())
state = edriver.TorchState(model=model, optimizer=optimizer, steps=0)


@edriver.run
def train(state: edriver.TorchState) -> None:
    print(f"worker {worker} is rank {edriver.rank()} of {edriver.size()} at step {state.steps}", flush=True)
    ddp = DistributedDataParallel(state.model, init_sync=False)
    while True:
        optimizer.zero_grad()
        ddp(torch.ones(2, 1024)).sum().backward()
        optimizer.step()
        state.steps += 1
        state.check_host_updates()
        if state.steps % 10 == 0:
            print(f"worker {worker} passed step {state.steps}", flush=True)
        time.sleep(0.02)


train(state)
end_quickly()
