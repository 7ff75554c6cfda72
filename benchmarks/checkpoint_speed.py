"""CHECKPOINT: what a checkpoint on disk costs a training loop that waits, as for a GPU; and how long it takes to load.

python -m benchmarks.checkpoint_speed [--megabytes 1000] [--folder DIR]      prints one JSON object

A model with Adam's state of so many MB. A step sleeps for 20 ms. A commit with a checkpoint is compared with one
without, and the step rate while the checkpoint is written with that while none is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import nn

import edriver
from edriver.worker.reports import checkpoints

TENSORS: Final = 100
STEP_SECONDS: Final = 0.02
ROUNDS: Final = 4
BOUND: Final = 120.0


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_speed")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the checkpoints go; by default a new folder in TMPDIR")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in a worker
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        print(json.dumps(measured(options.megabytes, folder)))
    finally:
        shutil.rmtree(folder)


def measured(megabytes: int, folder: Path) -> dict[str, float]:
    """The figures, by name."""
    state = _state(megabytes, folder)
    _commit(state, due=True)  # the first one: buffers are allocated for it, and for the commit after it
    _steps_until_written(state, 1)
    plain, begun, while_writing, seconds = [], [], [], []
    quiet = _step_rate(state, 100)
    for number in range(2, ROUNDS + 2):
        before = checkpoints.seconds
        plain.append(_commit(state, due=False))
        begun.append(_commit(state, due=True))
        while_writing.append(_steps_until_written(state, number))
        seconds.append(checkpoints.seconds - before)
    fresh = _state(megabytes, folder)
    began = time.perf_counter()
    fresh.load_checkpoint()
    loading = time.perf_counter() - began
    return {
        "commit ms": 1e3 * median(plain),
        "commit with a checkpoint ms": 1e3 * median(begun),
        "checkpoint over commit": median(begun) / median(plain),
        "step rate while written": median(while_writing) / quiet,
        "write s": median(seconds),
        "load s": loading,
        "MB": checkpoints.nbytes / checkpoints.count / 1e6,
    }


def _state(megabytes: int, folder: Path) -> edriver.TorchState:
    elements = megabytes * 1_000_000 // (TENSORS * 3 * 4)
    model = nn.ParameterList([torch.randn(elements) for _ in range(TENSORS)])
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return edriver.TorchState(model, optimizer, checkpoint=folder, every=1_000_000, keep=1)


def _commit(state: edriver.TorchState, due: bool) -> float:
    state.steps_made = 999_999 if due else 0
    began = time.perf_counter()
    state.commit()
    return time.perf_counter() - began


def _step_rate(state: edriver.TorchState, steps: int) -> float:
    state.steps_made = 0
    began = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_SECONDS)
        state.check_host_updates()
    return steps / (time.perf_counter() - began)


def _steps_until_written(state: edriver.TorchState, count: int) -> float:
    """The step rate until so many checkpoints have been written."""
    state.steps_made = 0
    steps, began = 0, time.perf_counter()
    while checkpoints.count < count or any(thread.name == "edriver-checkpoint" for thread in threading.enumerate()):
        assert not checkpoints.failures, "a checkpoint could not be written"
        assert time.perf_counter() < began + BOUND, "a checkpoint takes too long"
        time.sleep(STEP_SECONDS)
        state.check_host_updates()
        steps += 1
    return steps / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
