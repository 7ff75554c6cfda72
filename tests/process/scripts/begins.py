"""A training job whose module-level code says what it finds: the worker, its slot, its GPU, what a library has kept.

It counts how often each sample is trained on, as a part of its state, and ends with the first epoch after END is there.
At the end of each epoch rank 0 says how often the samples were trained on.
"""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import sys
import time
from pathlib import Path

os.environ["LIBRARY_MODE"] = "fast"  # before the library reads it
import an_installed_library  # type: ignore[import-not-found]
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import edriver

start_quickly()
worker, slot, gpu = (os.environ.get(name) for name in ("EDRIVER_WORKER_ID", "EDRIVER_SLOT", "CUDA_VISIBLE_DEVICES"))
print(
    f"worker {worker} begins in slot {slot} on {os.environ['EDRIVER_HOST']} with GPU {gpu} pid {os.getpid()} "
    f"as {__name__} of {Path(sys.argv[0]).name} {sys.argv[1:]}; the library is {an_installed_library.MODE}",
    flush=True,
)
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
    ddp = DistributedDataParallel(state.model)
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    while not state.ends:
        sampler.set_epoch(state.epoch)
        for index, (which, x, y) in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(x), y).backward()  # type: ignore[no-untyped-call]
            trained = torch.zeros(SAMPLES + 1, dtype=torch.int64)
            trained[:-1][which] += 1
            trained[-1] = Path("END").exists()
            dist.all_reduce(trained)  # before the step: what fails here was not trained
            optimizer.step()
            time.sleep(0.02)
            sampler.record_batch(index, BATCH)
            state.counts = [count + more for count, more in zip(state.counts, trained[:-1].tolist(), strict=True)]
            state.steps += 1
            state.ends = bool(trained[-1])
            state.commit()
            if Path("FAIL").exists() and edriver.rank() == edriver.size() - 1:
                raise ValueError("the script's own mistake")
        if edriver.rank() == 0 and not state.ends:
            more = sum(state.counts) - (state.epoch + 1) * SAMPLES
            print(f"after epoch {state.epoch}: each at least {min(state.counts)} times, {more} more in all", flush=True)
        state.epoch += 1


train(state)
end_quickly()
