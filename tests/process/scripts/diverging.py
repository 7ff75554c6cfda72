"""A job whose loss is no number from the first step on. It raises once a file named raise is there.

It writes down each step, in a file named steps.
"""

from tests.quick_start import start_quickly

# isort: split
import math
import sys
import time
from pathlib import Path

import torch

import edriver

start_quickly()


@edriver.run
def train(state: edriver.ObjectState) -> None:
    while not Path("raise").exists():
        state.step += 1
        with Path("steps").open("a") as steps:
            steps.write(f"{state.step}\n")
        state.report(loss=torch.tensor(math.nan).item(), scale=math.inf, lr=0.0)
        state.check_host_updates()
        if state.step == 5:
            print("passed step 5", flush=True)
        time.sleep(0.02)
    print("the last line before it", file=sys.stderr, flush=True)
    raise FloatingPointError("the loss is nan")


train(edriver.ObjectState(step=0))
