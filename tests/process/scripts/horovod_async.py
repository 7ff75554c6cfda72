"""A script for Horovod that starts operations, computes, and waits for their results then.

A worker of the first round kills itself while its operations are under way, so those of the others lack a member.
"""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import signal
import time
from pathlib import Path

import torch

import edriver.horovod as hvd

start_quickly()

LAST = 5
"""The step in which the worker kills itself."""

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> int:
    print(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} at step {state.step}", flush=True)
    while True:
        started = [hvd.allreduce_async(torch.full((50_000,), float(n)), op=hvd.Sum, name=f"sum {n}") for n in range(4)]
        rows = hvd.allgather_async(torch.full((hvd.rank() + 1, 2), hvd.rank()), name="rows")
        if state.step == LAST and hvd.rank() == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        for number, handle in enumerate(started):
            assert hvd.synchronize(handle).unique().tolist() == [number * hvd.size()]
        assert len(hvd.synchronize(rows)) == hvd.size() * (hvd.size() + 1) // 2
        state.optimizer.step()
        state.step += 1
        state.commit()
        over = hvd.allreduce(torch.tensor(float(Path("stop").exists())), op=hvd.Max)
        if over:
            return int(state.step)
        time.sleep(0.02)  # leave the processor to processes that start


steps = train(hvd.elastic.TorchState(model, optimizer, step=0))
print(f"rank {hvd.rank()} of {hvd.size()} is done: {steps} steps", flush=True)
end_quickly()
