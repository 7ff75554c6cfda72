"""Rounds of one rank over NCCL: building, severing, building again, device memory. Of several: test_cuda_worlds.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from edriver.agent.workers.worker_environment import NCCL_DEFAULTS
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.group.round_group import RoundGroup
from tests import needs

pytestmark = pytest.mark.needs(needs.GPU)

LIMIT_SECONDS = 300.0
MEGABYTE = 1 << 20


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[RoundGroup]:
    for name, value in {**NCCL_DEFAULTS, "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    group = RoundGroup("127.0.0.1")
    yield group
    group.teardown()


def build(group: RoundGroup, number: int) -> None:
    here = dataclasses.replace(SINGLE_WORKER, round_id=RoundId(1, number), store=group.store)
    group.build(here, LIMIT_SECONDS)


def all_reduce() -> float:
    total = torch.ones(MEGABYTE, device="cuda")
    dist.all_reduce(total)
    return float(total[0])


def test_a_round_takes_tensors_of_the_device_and_of_the_host(group: RoundGroup) -> None:
    build(group, 1)
    assert all_reduce() == 1.0
    on_the_host = torch.ones(1)
    dist.all_reduce(on_the_host)
    assert on_the_host.item() == 1.0


def test_a_severed_round_refuses_collectives_as_a_loss_and_the_next_one_works(group: RoundGroup) -> None:
    build(group, 1)
    all_reduce()
    subgroup = dist.new_group()
    dist.all_reduce(torch.ones(1, device="cuda"), group=subgroup)
    group.sever(RoundId(1, 1))
    for abort in group._round.aborts if group._round else ():
        abort.join(LIMIT_SECONDS)
    with pytest.raises(RuntimeError) as raised:
        all_reduce()
    assert looks_like_peer_loss(raised.value), raised.value
    del subgroup
    group.teardown()
    build(group, 2)
    assert all_reduce() == 1.0


def test_rounds_leave_no_device_memory_behind(group: RoundGroup) -> None:
    used: dict[int, int] = {}
    for number in range(1, 31):
        build(group, number)
        assert all_reduce() == 1.0
        if number % 2:
            group.sever(RoundId(1, number))
        group.teardown()
        free, total = torch.cuda.mem_get_info()
        used[number] = total - free
    assert used[30] < used[10] + 32 * MEGABYTE, used
