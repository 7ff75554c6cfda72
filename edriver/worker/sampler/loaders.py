"""Loaders that shard what is sharded, and samplers that are not elastic: refused, or named."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from edriver.worker import context

logger = logging.getLogger("edriver.worker")


def refuse_second_sharding() -> None:
    """Called where an ElasticSampler is iterated: refuse a loader that gives each rank a part of the rank's own part.

    Raises:
        RuntimeError: Accelerate has prepared the loader.
    """
    frame = inspect.currentframe()
    while frame is not None:
        accelerates = frame.f_globals.get("__name__") == "accelerate.data_loader"
        if accelerates and type(frame.f_locals.get("self")).__name__ == "BatchSamplerShard":
            raise RuntimeError(
                "accelerator.prepare(loader) shards again what the ElasticSampler has already split, so each rank "
                "would miss samples: do not prepare the loader"
            )
        frame = frame.f_back


@functools.cache
def watch_distributed_samplers() -> None:
    """Make a DistributedSampler that is iterated in a round log, once, that it is not elastic."""
    original = DistributedSampler.__iter__

    @functools.wraps(original)
    def iterate(self: DistributedSampler[Any]) -> Iterator[Any]:
        if context.in_round():
            _warn_not_elastic()
        return original(self)

    DistributedSampler.__iter__ = iterate  # type: ignore[method-assign]


@functools.cache
def _warn_not_elastic() -> None:
    if context.assignment().rank == 0:
        logger.warning(
            "a DistributedSampler starts its epoch again in each round, so samples are repeated and missed when "
            "workers "
            "come or go: use edriver.ElasticSampler, and give it to the state"
        )
