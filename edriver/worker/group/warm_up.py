"""A first step in miniature, before a worker reports that it is ready.

The first DistributedDataParallel, backward pass and optimizer step of a process import modules (torch._dynamo alone
takes a second), start threads and fill caches: some 100 ms more than the second. A newcomer that did all that in its
first round would make all other members wait.

Nor does it take new memory from the kernel then: see heap.py.

What edriver itself computes here knows nothing of what the script has set in the process: modes, hooks for all modules,
a default device (backend/process_modes.py). If the step in miniature fails all the same, the worker logs that in one
line and continues.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel.distributed import DistributedDataParallel
from torch.optim.adam import Adam

from edriver.worker.backend import checks, torch_code
from edriver.worker.backend.gloo import groups as gloo_groups
from edriver.worker.backend.heap import grow_heap
from edriver.worker.backend.process_modes import as_at_start
from edriver.worker.group.round_group import RoundGroup

logger = logging.getLogger("edriver.worker")


def warm_up() -> frozenset[str]:
    """Build a group of this process alone, and check edriver's assumptions about it. The script does not notice.

    Returns:
        The names of the checks (backend/checks.py) that have failed; each has been logged.
    """
    if dist.is_initialized():
        return frozenset()  # a group of the script's own, which edriver.run will object to
    with as_at_start(), group_alone():
        broken = checks.failed(checks.found_by((*checks.GROUP_CHECKS, *checks.PROCESS_CHECKS)))
        grow_heap()
    return broken


@functools.cache
def take_first_step() -> None:
    """Take a step with a tiny model, alone, once in a process. The script does not notice.

    It may fail because of a script's changes to torch; a line says so, and the script's first step takes longer.
    """
    if dist.is_initialized():
        return
    try:
        torch_code.import_dynamo()
        with as_at_start(), group_alone(), torch.random.fork_rng(devices=[]):
            tiny_step()
    except Exception as error:  # noqa: BLE001  nothing that comes of it may cost the run
        text = " ".join(str(error).split())
        logger.warning(
            "edriver's warm-up step, which prepares a worker, failed (%s: %.200s); this worker's first step "
            "in a round may take some 100 ms longer",
            type(error).__name__,
            text,
        )


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


class _TinyModel(torch.nn.Module):
    """A layer, without torch's own modules, which a script may have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float32))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return functional.relu(functional.linear(inputs, self.weight))


class _TinyAdam(Adam):
    """Stands in for Adam: torch wraps `step` of each class that an optimizer is made of, and with that of Adam itself
    wrapped, it would call a script's hooks twice in a step of a class derived from Adam.
    """


def tiny_step() -> None:
    """Take a step with a tiny model, in the default group, under none of the modes and hooks that a script has set."""
    with as_at_start(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _TinyModel()
        optimizer = _TinyAdam(model.parameters())
        wrapped = DistributedDataParallel(model)
        for _ in range(2):
            optimizer.zero_grad()
            outputs = wrapped(torch.zeros(1, 2, dtype=torch.float32))
            torch.autograd.backward(functional.cross_entropy(outputs, torch.zeros(1, dtype=torch.long)))
            optimizer.step()
