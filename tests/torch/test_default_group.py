"""What a script's own init_process_group and destroy_process_group do where the group is edriver's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from edriver.worker.backend import default_group
from edriver.worker.group.round_group import RoundGroup


@pytest.fixture
def ours() -> Iterator[RoundGroup]:
    default_group.guard()
    group = RoundGroup(None)
    group.build_alone()
    yield group
    group.teardown()


def test_inside_a_round_both_do_nothing(ours: RoundGroup) -> None:
    before = dist.GroupMember.WORLD
    dist.init_process_group("gloo")
    dist.destroy_process_group()
    dist.distributed_c10d.destroy_process_group(dist.GroupMember.WORLD)
    assert dist.GroupMember.WORLD is before
    dist.all_reduce(torch.ones(1))


def test_edriver_ends_its_group(ours: RoundGroup) -> None:
    ours.teardown()
    assert not dist.is_initialized()


def test_a_subgroup_is_the_scripts(ours: RoundGroup) -> None:
    part = dist.new_group([0])
    dist.destroy_process_group(part)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(part)


def test_a_group_of_the_scripts_own_is_its_own() -> None:
    default_group.guard()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_before_a_round_there_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    default_group.guard()
    monkeypatch.setenv("EDRIVER_WORKER_ID", "1")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="remove the call from the script"):
        dist.init_process_group("gloo")
