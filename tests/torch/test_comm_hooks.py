"""A communication hook that remembers something from step to step is named, once; one without a state is not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from edriver.worker import context
from edriver.worker.watch import comm_hooks
from tests.torch.bound_state import new_state


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    comm_hooks._warn.cache_clear()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def registered(state: object, hook: Any) -> None:
    model = DistributedDataParallel(new_state().model)
    model.register_comm_hook(state, hook)
    model(torch.ones(8, 4)).sum().backward()


def test_a_hook_with_a_state_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "edriver.worker"), context.current.place.rehearsing():
        for _ in range(2):
            registered(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]
    assert "PowerSGDState" in line


def test_a_hook_without_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "edriver.worker"), context.current.place.rehearsing():
        registered(None, default_hooks.fp16_compress_hook)
        registered(dist.group.WORLD, default_hooks.allreduce_hook)
    registered(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)  # outside of rounds
    assert [record.getMessage() for record in caplog.records if record.name == "edriver.worker"] == []
