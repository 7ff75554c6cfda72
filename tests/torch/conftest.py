"""What the tests of tests/torch share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from edriver.worker.backend import default_group
from edriver.worker.checkpoints import state_checkpoints as checkpoints


@pytest.fixture
def group() -> Iterator[None]:
    """A world of one with a process group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def alone() -> Iterator[None]:
    """A script on its own: its group, which stays as long as the process, ends with the test."""
    yield
    default_group.destroy()


@pytest.fixture
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread writes checkpoints, and the time of day stands still."""

    def at_once(job: Callable[[], None]) -> None:
        job()

    monkeypatch.setattr(checkpoints.StateCheckpoints.__init__, "__defaults__", (at_once, lambda: 1000.0))


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    """A test that leaves torch's default group behind fails itself, and not the ones that come after it."""
    yield
    if dist.is_initialized():
        default_group.destroy()  # also where it is that of a round
        pytest.fail("it leaves a process group")
