"""What an epoch's indices cost: `python -m benchmarks.sampler_speed`.

ElasticSampler over 10^8 samples beside torch's DistributedSampler over 10^7, which draws a permutation of all of them
and makes a list of it before it gives out the first. One process, rank 0 of four. Prints one JSON object.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch.utils.data import DistributedSampler

from edriver.worker import topology
from edriver.worker.sampler import ElasticSampler

RANKS = 4
ELASTIC_LENGTH = 10**8
DISTRIBUTED_LENGTH = 10**7
COUNT = 2_000_000
"""How many indices are drawn."""


def main() -> None:
    """Draw and print."""
    torch.set_num_threads(1)
    topology.enter(replace(topology.ALONE, size=RANKS))
    elastic = ElasticSampler(range(ELASTIC_LENGTH))
    distributed: DistributedSampler[int] = DistributedSampler(range(DISTRIBUTED_LENGTH), num_replicas=RANKS, rank=0)  # type: ignore[arg-type]  # a sequence will do
    report = {
        f"ElasticSampler, {ELASTIC_LENGTH:.0e} samples": _timed(iter(elastic)),
        f"DistributedSampler, {DISTRIBUTED_LENGTH:.0e} samples": _timed(_from_the_start(distributed)),
    }
    print(json.dumps(report, indent=2))


def _from_the_start(sampler: DistributedSampler[int]) -> Iterator[int]:
    yield from sampler  # so that the list is made at the first index and not in iter()


def _timed(indices: Iterator[int]) -> dict[str, float]:
    """Seconds to the first index; nanoseconds for each of the next ones, and with the first one's included."""
    start = time.perf_counter()
    next(indices)
    first = time.perf_counter()
    drawn = sum(1 for _ in islice(indices, COUNT))
    end = time.perf_counter()
    return {
        "seconds to the first index": round(first - start, 6),
        "nanoseconds per index": round((end - first) / drawn * 1e9, 1),
        "nanoseconds per index, the first one's time included": round((end - start) / drawn * 1e9, 1),
    }


if __name__ == "__main__":
    main()
