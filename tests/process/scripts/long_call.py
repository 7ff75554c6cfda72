"""Trains a little. At step 3 all ranks make a long call of native code that keeps the interpreter's lock (CALL)."""

import ctypes
import os

import torch
import torch.distributed as dist

import edriver

state = edriver.ObjectState(step=0)


def call() -> None:
    """Keep the interpreter's lock: `computes` uses the processor, `sleeps` does not."""
    if os.environ["CALL"] == "computes":
        sum(range(int(os.environ["COUNT"])))
    else:
        ctypes.PyDLL(None).sleep(int(os.environ["SECONDS"]))


@edriver.run
def train(state: edriver.ObjectState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    while state.step < 6:
        if state.step == 3 and edriver.size() == int(os.environ["RANKS"]):
            print(f"rank {edriver.rank()} calls", flush=True)
            with edriver.phase(os.environ["PHASE"]):
                call()
        dist.all_reduce(torch.ones(1))
        state.step += 1
        state.commit()
    print(f"rank {edriver.rank()} is done", flush=True)


train(state)
