"""The first step in miniature leaves no trace but a warm process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from edriver.worker.group.warm_up import take_first_step, warm_up


@pytest.mark.parametrize("prepare", [warm_up, take_first_step.__wrapped__])
def test_the_warm_up_leaves_no_trace_for_the_script(prepare: Callable[[], object]) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    prepare()
    assert torch.equal(torch.get_rng_state(), before)
    assert not dist.is_initialized()
    assert c10d._world.group_count == 0, "the next group's name must be the same as on other workers"


def test_a_group_of_the_scripts_own_is_left_alone() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        warm_up()
        take_first_step.__wrapped__()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps its memory in another way")
def test_allocations_after_the_warm_up_reuse_its_memory() -> None:
    source = """
import resource, torch
from edriver.worker.group.warm_up import warm_up
warm_up()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
kept = [torch.zeros(2**20, dtype=torch.uint8) for _ in range(24)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, "-c", source], env=plain, stdout=subprocess.PIPE, check=True, timeout=300)
    assert int(done.stdout) < 1000, "page faults; 24 MiB have 6144 pages"


def test_what_a_script_warms_up_with_is_called_once_and_leaves_the_state_as_it_was() -> None:
    source = """
import torch, torch.distributed as dist, edriver
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
state = edriver.TorchState(model=model, optimizer=optimizer, steps=0)
state.steps = 7
before, random = model.weight.detach().clone(), torch.get_rng_state()

def warm_up(state):
    assert dist.get_world_size() == 1 and (edriver.rank(), edriver.size()) == (0, 1)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    model(torch.randn(2, 4)).sum().backward()
    state.steps += 1
    state.commit()
    print("warm")

@edriver.run(warm_up=warm_up)
def train(state):
    assert torch.equal(model.weight, before) and torch.equal(torch.get_rng_state(), random)
    assert state.steps == 7 and not optimizer.state and model.weight.grad is None
    print("train")

train(state)
train(state)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["warm", "train", "train"]
