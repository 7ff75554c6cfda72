"""The first step in miniature leaves no trace but a warm process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from edriver.worker.warm_up import warm_up


def test_the_script_sees_nothing_of_it() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    warm_up()
    assert torch.equal(torch.get_rng_state(), before)
    assert not dist.is_initialized()
    assert c10d._world.group_count == 0, "the next group's name must be the same as on other workers"


def test_a_group_of_the_scripts_own_is_left_alone() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        warm_up()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
