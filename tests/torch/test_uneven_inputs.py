"""Boundaries inside torch's Join are named; a Join without boundaries, as around an evaluation, is not."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from edriver.worker.watch import uneven_inputs
from tests.torch.bound_state import new_state


class Joined(Joinable):
    """Takes part in a Join, with nothing to do."""

    def __init__(self) -> None:
        super().__init__()

    def join_hook(self, **_: object) -> JoinHook:
        return JoinHook()

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> object:
        return dist.group.WORLD


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    uneven_inputs._warn.cache_clear()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_boundary_inside_a_join_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    state = new_state()
    with caplog.at_level(logging.WARNING), Join([Joined()]):
        state.first_boundary()
        state.first_boundary()
    (line,) = caplog.messages
    assert "torch's Join" in line
    assert "edriver.ElasticSampler" in line


def test_a_join_that_is_over_is_not(caplog: pytest.LogCaptureFixture) -> None:
    state = new_state()
    with caplog.at_level(logging.WARNING):
        with Join([Joined()]):
            pass
        with pytest.raises(KeyError), Join([Joined()]):
            raise KeyError
        state.first_boundary()
    assert caplog.messages == []
