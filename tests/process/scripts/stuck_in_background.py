"""Rank 0 broadcasts to rank 1 in the background; rank 1 stops in the middle of it; all are waiting for rank 1."""

from tests.quick_start import start_quickly

# isort: split
import os
import signal

import torch
import torch.distributed as dist

import edriver

start_quickly()

state = edriver.ObjectState(round=0)


@edriver.run
def train(state: edriver.ObjectState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()}", flush=True)
    state.commit()
    if edriver.size() == 2:
        dist.barrier()
        if edriver.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if edriver.size() == 3:
        two = dist.new_group([0, 1])
        much = torch.full((64_000_000 if edriver.rank() < 2 else 1,), float(edriver.rank() == 0))
        dist.barrier()
        if edriver.rank() < 2:
            broadcast = dist.broadcast(much, 0, group=two, async_op=True)
            assert broadcast is not None
        if edriver.rank() == 1:
            while not much[0]:
                pass
            assert not much[-1], "all of it has arrived already"
            os.kill(os.getpid(), signal.SIGSTOP)
    if edriver.size() > 1:
        dist.recv(torch.empty(1), 1)


train(state)
