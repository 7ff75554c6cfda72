"""A program that calls a function in the workers of a Ray cluster, as a Ray job or by hand."""

from __future__ import annotations

import sys

import edriver.ray


def train(config: dict[str, float]) -> tuple[int, int, float]:
    import torch

    import edriver

    rate = torch.full((1,), config["rate"])
    torch.distributed.all_reduce(rate)
    return edriver.rank(), edriver.size(), rate.item()


if __name__ == "__main__":
    where = sys.argv[1] if sys.argv[1:] else None
    flags = ["--no-records", "--start-timeout", "300"]
    results = edriver.ray.run(
        train, {"rate": 0.5}, min_workers=2, resources_per_worker={"CPU": 1}, address=where, flags=flags
    )
    print("results:", results)
