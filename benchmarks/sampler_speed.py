"""The cost of an epoch's indices: `python -m benchmarks.sampler_speed`.

ElasticSampler over 10^8 samples beside torch's DistributedSampler over 10^7, which draws a permutation of all of them
and makes a list of it before it gives out the first. One process, rank 0 of four. Prints one JSON object: seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch.utils.data import DistributedSampler

from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.sampler.elastic_sampler import ElasticSampler

RANKS = 4
ELASTIC_LENGTH = 10**8
DISTRIBUTED_LENGTH = 10**7
COUNT = 2_000_000
"""How many indices are drawn."""


def main() -> None:
    """Draw and print."""
    torch.set_num_threads(1)
    context.current.place.enter(replace(SINGLE_WORKER, size=RANKS))
    elastic = ElasticSampler(range(ELASTIC_LENGTH))
    distributed: DistributedSampler[int] = DistributedSampler(range(DISTRIBUTED_LENGTH), num_replicas=RANKS, rank=0)  # type: ignore[arg-type]  # a sequence will do
    found = {}
    for name, indices in (("ElasticSampler of 1e8", iter(elastic)), ("DistributedSampler of 1e7", _drawn(distributed))):
        found[f"{name}: to the first index"], found[f"{name}: each of the next"] = _timed(indices)
    print(json.dumps(found))


def _drawn(sampler: DistributedSampler[int]) -> Iterator[int]:
    yield from sampler  # so that the list is made at the first index and not in iter()


def _timed(indices: Iterator[int]) -> tuple[float, float]:
    """Seconds to the first index, and for each of the next COUNT."""
    start = time.perf_counter()
    next(indices)
    first = time.perf_counter()
    drawn = sum(1 for _ in islice(indices, COUNT))
    return first - start, (time.perf_counter() - first) / drawn


if __name__ == "__main__":
    main()
