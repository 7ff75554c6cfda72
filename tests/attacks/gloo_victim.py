"""A training job in which a collective breaks every few steps: one round follows the other, ROUNDS times.

Each time its workers connect to one another LATE seconds after they have published where they listen, as on a machine
that is busy at the worst moment; in its first round, once another process has connected to it, or after UNGUARDED_TIME
without one. So does each worker guard its first device. The attacker is in time for one round at least of each kind,
however fast this machine is.
"""

from tests.quick_start import start_quickly

# isort: split
import os
import socket
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import edriver
from edriver.system.sockets import hold_back
from edriver.worker.backend.gloo import guarded_devices
from edriver.worker.backend.gloo.sever import gloo_devices
from edriver.worker.group.store import StoreClient

start_quickly()

LATE = float(os.environ.get("LATE", "0"))
UNGUARDED_TIME = 20.0
look_up = StoreClient.multi_get


def wait_until(met: Callable[[], bool]) -> None:
    """Wait for the attacker, for UNGUARDED_TIME at most."""
    deadline = time.monotonic() + UNGUARDED_TIME
    while not met() and time.monotonic() < deadline:
        time.sleep(0.001)


unmet = True


def look_up_late(store: StoreClient, keys: list[str]) -> list[bytes]:
    """Answer where the others listen; at first, once another process has connected to where this one does."""
    global unmet
    wait_until(lambda: not unmet or all(one.connections for one in gloo_devices().values()))
    unmet = not gloo_devices()
    time.sleep(LATE)
    return look_up(store, keys)


setattr(StoreClient, "multi_get", look_up_late)  # noqa: B010

attempts = guarded_devices.ATTEMPTS
unguarded = True


def guard_late(listener: socket.socket) -> None:
    """Leave the first device open until a connection is there, and let it be used all the same."""
    global unguarded
    inode = os.fstat(listener.fileno()).st_ino
    wait_until(lambda: not unguarded or bool(gloo_devices()[inode].connections))
    guarded_devices.ATTEMPTS = 1 if unguarded else attempts
    unguarded = False
    hold_back(listener)


setattr(guarded_devices, "hold_back", guard_late)  # noqa: B010

STEPS = 3 * int(os.environ["ROUNDS"])


@edriver.run
def train(state: edriver.TorchState) -> str:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    while state.steps < STEPS:
        reported = torch.ones(1)
        dist.all_reduce(reported)
        assert reported == edriver.size(), "what was summed up is not the members'"
        state.sum.add_(reported / edriver.size())
        state.steps += 1
        state.commit()
        if state.steps % 3 == 0 and state.steps < STEPS and edriver.rank() == 1:
            raise RuntimeError("[gloo/broken on purpose")
    return "trained"


state = edriver.TorchState(sum=torch.zeros(1), steps=0)
outcome = train(state)
assert state.sum == state.steps, "the state is not what the members have made of it"
print(f"rank {edriver.rank()} is done: {outcome}", flush=True)
