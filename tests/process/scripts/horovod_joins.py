"""All ranks but the first are out of data after a few batches, and join; the first has data until a third is there."""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import time

import torch

import edriver.horovod as hvd

start_quickly()

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)


def has_data(batch: int) -> bool:
    return batch < 3 or (hvd.rank() == 0 and hvd.size() < 3)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    print(f"rank {hvd.rank()} of {hvd.size()} at step {state.step}", flush=True)
    batch = 0
    while has_data(batch):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        batch += 1
        state.step += 1
        state.check_host_updates()
        time.sleep(0.05)
    print(f"rank {hvd.rank()} of {hvd.size()} joins", flush=True)
    hvd.join()


train(state)
end_quickly()
