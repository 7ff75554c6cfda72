"""BOUNDARY: what a boundary without news costs a model of ResNet-50's sizes with Adam and BatchNorm.

    python -m benchmarks.boundary_speed        prints one JSON object: seconds by name

`check` is the look for news and the note of the time alone; `note read` is what is made of that note, once the agent
asks, in a thread beside the training one; `boundary` is `state.check_host_updates()` with all that the state keeps, one
after the other; `boundary after a step` is the same right after an optimizer step over 100 MB of parameters, which has
left nothing of it in the processor's caches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from statistics import median

import torch
from torch import nn

import edriver
from edriver.model.ids import RoundId
from edriver.v1 import notification_pb2
from edriver.worker.rounds.participant import Participant
from edriver.worker.rounds.step_times import StepTimer

BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))
CHECKS, BOUNDARIES, STEPS = 99_000, 1000, 40  # checks: as many as are kept until they are read
PARAMETERS, TENSORS, CHANNELS = 25_557_032, 161, 26_560


class QuietRounds:
    """The run around a state, in a round in which nothing happens: the note and the comparison are the real ones."""

    abort_cause = None

    def __init__(self) -> None:
        self._participant = Participant()
        self.step_times = StepTimer()

    def boundary(self, committed: bool) -> None:
        """Count a boundary."""
        self.step_times.passed()
        if self._participant.passed(committed):
            raise AssertionError("there is no news in a quiet round")

    def check(self) -> None:
        """Look for bad news."""

    def clipped(self, norm: float) -> None:
        """Take no notice."""

    def seal_broken(self, error: Exception) -> None:
        """Raise it."""
        raise error


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)  # as in a worker
    rounds = QuietRounds()
    began = time.perf_counter()
    for _ in range(CHECKS):
        rounds.boundary(committed=False)
    check = (time.perf_counter() - began) / CHECKS
    found = {"check": check, "note read": note_read()}
    for flat, name in ((False, ""), (True, ", flat buffers")):
        found[f"boundary{name}"], found[f"boundary after a step{name}"] = boundary(flat)
    print(json.dumps(found))


def note_read() -> float:
    """Seconds that it takes to make something of the note of one boundary."""
    times, progress = StepTimer(), notification_pb2.WorkerProgress()
    times.synced(RoundId(1, 1))
    for _ in range(CHECKS):
        times.passed()
    began = time.perf_counter()
    times.fill(progress)
    return (time.perf_counter() - began) / CHECKS


def boundary(flat: bool) -> tuple[float, float]:
    """Seconds of a boundary among others, and of one right after a step: medians of many.

    Args:
        flat: whether the buffers are views of one flat tensor of each type.
    """
    model = layers()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    assert len(list(model.parameters())) == TENSORS
    touched = flattened(model) if flat else list(model.buffers())
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    sampler = edriver.ElasticSampler(range(1_281_167), seed=1)
    state = edriver.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)
    state.bind(QuietRounds())
    optimizer.step()
    state.commit()
    among_others = []
    for _ in range(BOUNDARIES):
        state.step += 1
        among_others.append(_seconds_of_one(state))
    after_steps = []
    for _ in range(STEPS):
        optimizer.step()
        for buffer in touched:
            buffer.add_(1)
        state.step += 1
        after_steps.append(_seconds_of_one(state))
    return median(among_others), median(after_steps)


def _seconds_of_one(state: edriver.TorchState) -> float:
    began = time.perf_counter()
    state.check_host_updates()
    return time.perf_counter() - began


def layers() -> nn.ModuleList:
    """The layers of a ResNet-50, side by side: nothing here runs them."""
    pairs = [(conv, nn.BatchNorm2d(conv.out_channels)) for conv in _convolutions()]
    assert sum(norm.num_features for _, norm in pairs) == CHANNELS
    return nn.ModuleList([*(layer for pair in pairs for layer in pair), nn.Linear(2048, 1000)])


def _convolutions() -> Iterator[nn.Conv2d]:
    yield nn.Conv2d(3, 64, 7, bias=False)
    width_in = 64
    for width, blocks in BLOCKS:
        for block in range(blocks):
            yield nn.Conv2d(width_in, width, 1, bias=False)
            yield nn.Conv2d(width, width, 3, bias=False)
            yield nn.Conv2d(width, 4 * width, 1, bias=False)
            if block == 0:
                yield nn.Conv2d(width_in, 4 * width, 1, bias=False)
            width_in = 4 * width


def flattened(model: nn.Module) -> list[torch.Tensor]:
    """Make the buffers views of one flat tensor of each type; returns those."""
    flats = []
    for dtype in (torch.float32, torch.int64):
        owners = [
            (module, name, buffer)
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.dtype == dtype
        ]
        flat = torch.cat([buffer.reshape(-1) for *_, buffer in owners])
        parts = torch.split(flat, [buffer.numel() for *_, buffer in owners])
        for (module, name, buffer), part in zip(owners, parts, strict=True):
            setattr(module, name, part.view(buffer.shape))
        flats.append(flat)
    return flats


if __name__ == "__main__":
    main()
