"""What the tests of tests/torch share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore


@pytest.fixture
def group() -> Iterator[None]:
    """A world of one with a process group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
