"""Communication hooks of DistributedDataParallel that remember something: it does not outlive a round."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel

from edriver.worker import context

logger = logging.getLogger("edriver.worker")


@functools.cache
def watch_comm_hooks() -> None:
    """From now on a hook with a state that is registered in a round is named in a warning, once, by rank 0."""
    original = DistributedDataParallel.register_comm_hook

    @functools.wraps(original)
    def register(self: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
        original(self, state, hook)
        if context.in_round() and context.assignment().rank == 0 and not isinstance(state, dist.ProcessGroup | None):
            _warn(type(state).__name__)

    DistributedDataParallel.register_comm_hook = register  # type: ignore[method-assign]


@functools.cache
def _warn(kind: str) -> None:
    logger.warning(
        "edriver: what DistributedDataParallel's communication hook remembers (its %s) starts empty when workers come "
        "or go, such as PowerSGD's error feedback: training then differs from that of an undisturbed run. A hook "
        "without state, such as fp16_compress_hook, has nothing to lose",
        kind,
    )
