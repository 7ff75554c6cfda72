"""Trains a little; at step 3 of each round the script makes the mistake that MISTAKE names."""

from tests.quick_start import start_quickly

# isort: split
import os
import threading
import time

import torch
import torch.distributed as dist

import edriver

start_quickly()

MISTAKE = os.environ["MISTAKE"]
state = edriver.ObjectState(step=6 if MISTAKE == "no-step" else 0, best=None)


def surrogate() -> None:
    raise ValueError("cannot read \udcff.png")


def large() -> None:
    raise ValueError("x" * 5_000_000)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unprintable() -> None:
    raise UnprintableError


@edriver.run
def evaluate(state: edriver.ObjectState) -> None:
    print("never", flush=True)


def swallow(state: edriver.ObjectState) -> None:
    print(f"rank {edriver.rank()} is careless", flush=True)
    while True:
        try:
            state.commit()  # in a loop that catches too much
        except RuntimeError as error:
            print(f"caught {type(error).__name__}", flush=True)
        time.sleep(0.01)


def skip_what_fails() -> None:
    print(f"rank {edriver.rank()} is careless", flush=True)
    while True:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            time.sleep(0.01)


def log_loss() -> None:
    if MISTAKE == "barrier":
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(1))


def leave_a_thread() -> None:
    threading.Thread(target=threading.Event().wait, name="uploader").start()


@edriver.run
def train(state: edriver.ObjectState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    while state.step < (5 if MISTAKE == "uneven" and edriver.rank() == 1 else 6):
        dist.all_reduce(torch.ones(1000 if MISTAKE == "other-size" else 1))
        if state.step == 3 and MISTAKE in ("barrier", "other-size", "same-size") and edriver.rank() == 1:
            log_loss()
        if state.step == 3 and MISTAKE in ("surrogate", "large", "unprintable"):
            globals()[MISTAKE]()
        if state.step == 3 and MISTAKE == "nested":
            evaluate(state)
        if state.step == 3 and MISTAKE == "skip":
            skip_what_fails()
        if state.step == 3 and MISTAKE == "swallow":
            swallow(state)
        if state.step == 3 and MISTAKE == "differs":
            state.best = 0.5 + edriver.rank()  # a local loss
        state.step += 1
        state.commit()
    print(f"rank {edriver.rank()} is done", flush=True)


train(state)
if MISTAKE == "thread" and edriver.rank() == 1:
    leave_a_thread()
