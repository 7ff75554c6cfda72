"""Goes through SAMPLES, one a step. At step 3 the first CALLERS of RANKS ranks, by default all, make a long call of
native code that keeps the interpreter's lock (CALL)."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import ctypes
import itertools
import os
import time

import torch
import torch.distributed as dist

import edriver

start_quickly()

SECONDS = float(os.environ["SECONDS"])
RANKS = int(os.environ["RANKS"])
CALLERS = int(os.environ.get("CALLERS", RANKS))
sampler = edriver.ElasticSampler(range(int(os.environ["SAMPLES"])))
state = edriver.TorchState(sampler=sampler, step=0)


def call() -> None:
    """Keep the interpreter's lock: `computes` uses the processor, `sleeps` does not."""
    if os.environ["CALL"] == "computes":
        until = time.monotonic() + SECONDS
        all(map(until.__gt__, itertools.starmap(time.monotonic, itertools.repeat(()))))  # C calls C throughout
    else:
        ctypes.PyDLL(None).usleep(int(SECONDS * 1e6))


@edriver.run
def train(state: edriver.TorchState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    for index, sample in enumerate(sampler):
        if state.step == 3 and edriver.size() == RANKS:
            calls = edriver.rank() < CALLERS
            print(f"rank {edriver.rank()} {'calls' if calls else 'waits'}", flush=True)
            if calls:
                with edriver.phase(os.environ["PHASE"]):
                    call()
        dist.all_reduce(torch.ones(1))
        sampler.record_batch(index, 1)
        state.step += 1
        print(f"took {sample}", flush=True)  # before the boundary, which a change of the members leaves by an exception
        state.commit()
    print(f"rank {edriver.rank()} is done", flush=True)


train(state)
end_quickly()
