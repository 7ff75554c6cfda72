"""Trains a little. In the first round, at step 3, rank 1 stalls in the way that the variable STALL names."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import ctypes
import os
import threading

import torch
import torch.distributed as dist

import edriver

start_quickly()

state = edriver.ObjectState(step=0)


def load_data() -> None:
    """What never comes back."""
    threading.Event().wait()


def stall() -> None:
    kind = os.environ["STALL"]
    print(f"stalls: {kind}", flush=True)
    if kind == "python":
        load_data()
    if kind == "native":
        ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)  # keeps the interpreter's lock
    if kind in ("eval", "save"):
        with edriver.phase(kind):
            threading.Event().wait(float(os.environ["SECONDS"]))


@edriver.run
def train(state: edriver.ObjectState) -> None:
    first = state.step == 0
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    while state.step < 6:
        if first and state.step == 3 and edriver.rank() == 1:
            stall()
        dist.all_reduce(torch.ones(1))
        state.step += 1
        state.commit()
    print(f"rank {edriver.rank()} is done", flush=True)


train(state)
end_quickly()
