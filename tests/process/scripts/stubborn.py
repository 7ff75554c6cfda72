"""Trains until it is killed: SIGTERM has it say so, and go on."""

import os
import signal
import time
from types import FrameType

import torch

import edriver


def told(_number: int, _frame: FrameType | None) -> None:
    print("received SIGTERM", flush=True)


signal.signal(signal.SIGTERM, told)
state = edriver.TorchState(model=torch.nn.Linear(1, 1), step=0)


@edriver.run
def train(state: edriver.TorchState) -> None:
    while True:
        state.step += 1
        print(f"pid {os.getpid()} passed step {state.step}", flush=True)
        time.sleep(0.05)
        state.check_host_updates()


train(state)
