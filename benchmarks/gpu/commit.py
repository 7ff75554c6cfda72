"""Commit and boundary of a model of 1 GB with Adam, on the device: `python -m benchmarks.gpu.commit DEVICE MEGABYTES`.

Prints one JSON object, seconds by name: medians. `commit` is the call, `commit until whole` until the copy on the host
is complete, `step` a step that nothing is copied beside, `step beside a commit` the one right after.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

import edriver
from benchmarks.boundary_speed import QuietRounds

REPEATS = 7
LAYERS = 24


def main() -> None:
    """Measure, and print."""
    device, megabytes = sys.argv[1], int(sys.argv[2])
    width = int((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    state = edriver.TorchState(model, optimizer, step=0)
    state.bind(QuietRounds())
    inputs = torch.randn(64, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(inputs).square().mean())
        optimizer.step()

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    state.commit()
    settle()
    found: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[[], Any], wait: bool) -> None:
        began = time.perf_counter()
        action()
        if wait:
            settle()
        found.setdefault(name, []).append(time.perf_counter() - began)

    for _ in range(REPEATS):
        timed("step", step, wait=True)
        timed("boundary", state.check_host_updates, wait=False)
        timed("step", step, wait=True)
        settle()
        began = time.perf_counter()
        timed("commit", state.commit, wait=False)
        settle()
        found.setdefault("commit until whole", []).append(time.perf_counter() - began)
        step()
        settle()
        state.commit()
        timed("step beside a commit", step, wait=True)
        settle()
    size = sum(p.numel() * 4 for p in model.parameters())
    result = {name: median(values) for name, values in found.items()}
    print(json.dumps({"bytes of the model": size, "bytes of a commit": 3 * size, **result}))


if __name__ == "__main__":
    main()
