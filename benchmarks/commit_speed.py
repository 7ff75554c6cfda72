"""COMMIT: how fast `commit()` copies 100 million parameters with Adam's state, beside a plain copy of as many bytes.

python -m benchmarks.commit_speed        prints one JSON object: bytes a second by name
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

import edriver

TENSORS, ELEMENTS = 300, 333_334
REPEATS = 7


def main() -> None:
    """Measure, taking turns, and print."""
    torch.set_num_threads(1)  # as in a worker
    model = nn.ParameterList([torch.randn(ELEMENTS) for _ in range(TENSORS)])
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    size = 3 * TENSORS * ELEMENTS
    state = edriver.TorchState(model, optimizer)
    source, target = torch.ones(size), torch.ones(size)
    state.commit()  # allocates
    commits, copies = [], []
    for _ in range(REPEATS):
        commits.append(_seconds(state.commit))
        copies.append(_seconds(lambda: target.copy_(source)))
    print(json.dumps({"commit speed": 4 * size / median(commits), "copy speed": 4 * size / median(copies)}))


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
