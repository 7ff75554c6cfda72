"""A first step in miniature, before a worker reports that it is ready.

The first DistributedDataParallel, backward pass and optimizer step of a process import modules (torch._dynamo alone
takes a second), start threads and fill caches: some 100 ms more than the second. A newcomer that did all that in its
first round would make all other members wait.

Nor does it take new memory from the kernel then, which costs a page fault for every 4 KiB: 2 microseconds each, and up
to 20 on a virtual machine that has given its free memory back to its host.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from edriver.worker.backend import checks, torch_code
from edriver.worker.backend.gloo import groups as gloo_groups
from edriver.worker.group.round_group import RoundGroup

HEAP_BYTES = 31 * 2**20
"""Memory that is made ready: nearly as much as the C library (glibc, malloc.c: DEFAULT_MMAP_THRESHOLD_MAX) ever takes
from its heap at once, and keeps there."""


def warm_up() -> frozenset[str]:
    """Build a group of this process alone, and check what edriver takes for granted of it.

    What the script sees of it: nothing.

    Returns:
        The names of the checks (backend/checks.py) that have failed; each has been logged.
    """
    if dist.is_initialized():
        return frozenset()  # a group of the script's own, which edriver.run will object to
    with group_alone():
        broken = checks.failed(checks.found_by((*checks.GROUP_CHECKS, *checks.PROCESS_CHECKS)))
    grow_heap()
    return broken


@functools.cache
def take_first_step() -> None:
    """Take a step with a tiny model, alone, once in a process. The script sees nothing of it."""
    torch_code.import_dynamo()
    if not dist.is_initialized():
        with group_alone(), torch.random.fork_rng(devices=[]):
            tiny_step()


@contextlib.contextmanager
def group_alone() -> Iterator[None]:
    """Have a default process group of this process alone; where there is one already, that."""
    if dist.is_initialized():
        yield
        return
    gloo_groups.when_made(None)
    group = RoundGroup(None)
    group.build_alone()
    try:
        yield
    finally:
        group.teardown()


def grow_heap() -> None:
    """Take memory, write to it, and give it back to the heap, from which it will be taken again.

    malloc takes large blocks from the kernel each time, until one has been freed: then it takes such as that from the
    heap, and keeps twice as much there (mallopt(3), M_MMAP_THRESHOLD). Elsewhere than with glibc nothing of it lasts.
    """
    torch.empty(HEAP_BYTES, dtype=torch.uint8)
    torch.zeros(HEAP_BYTES, dtype=torch.uint8)


def tiny_step() -> None:
    """Take a step with a tiny model, in the default group."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    wrapped = DistributedDataParallel(model)
    for inputs in DataLoader(torch.zeros(2, 2), batch_size=1):  # type: ignore[arg-type]  # a tensor is a dataset, too
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(wrapped(inputs), torch.zeros(1, dtype=torch.long)))
        optimizer.step()
