"""Rank 0 sends more than the sockets hold to rank 1, which is stopped meanwhile; rank 2 waits for rank 0."""

from tests.quick_start import start_quickly

# isort: split
import os
import signal

import torch
import torch.distributed as dist

import edriver
from edriver.worker.rounds import severing

start_quickly()

severing.STUCK_BOUND = 3600.0  # only a thread that nothing can wake any more is to be given up
state = edriver.ObjectState(round=0)


@edriver.run
def train(state: edriver.ObjectState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()}", flush=True)
    if edriver.size() < 3:
        return
    state.commit()
    much = torch.ones(16_000_000)
    if edriver.rank() == 0:
        dist.send(much, 1)
    elif edriver.rank() == 1:
        receiving = dist.irecv(much, 0)  # Gloo sends what is waited for
        os.kill(os.getpid(), signal.SIGSTOP)
        assert receiving is not None
    else:
        dist.recv(much, 0)


train(state)
