"""Shares that follow how long each worker takes for a micro-batch, so that a slow host does not hold up a step.

Now and then the workers tell one another how long they take. All know the same then, and deal out later steps by it:
so much later that no loader has read its samples ahead.

What is measured are micro-batches whose backward pass waits for no other worker: all but a worker's last one. So a
worker that computes one micro-batch a step is taken to be as fast as when it computed more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.distributed as dist

INTERVAL: Final = 16
"""Steps between two measurements."""

WORTHWHILE: Final = 0.95
"""Shares are changed if a step then takes at most so much of the time that it would take."""


class Speed:
    """How long the workers of a round take for a micro-batch.

    Args:
        workers: their number.
        read_ahead: the number of steps whose samples loaders may have read ahead.
        device: where this worker computes.
        step_time: for each rank's seconds, tells how long a step would take with shares that follow others.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        workers: int,
        read_ahead: int,
        device: torch.device,
        step_time: Callable[[Sequence[float], Sequence[float] | None], float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._workers, self._read_ahead, self._device = workers, read_ahead, device
        self._step_time = step_time
        self._clock = clock
        self._known: list[tuple[int, Sequence[float] | None]] = [(0, None)]
        self._begun_at = 0.0
        self._own = math.nan

    def at(self, step: int) -> Sequence[float] | None:
        """The seconds by which a step is dealt out; None: evenly."""
        return next(seconds for since, seconds in reversed(self._known) if since <= step)

    def begin(self, step: int) -> None:
        """A step's first micro-batch begins on this worker."""
        if self.measures(step):
            self._begun_at = self._now()

    def before_last(self, step: int, computed: int) -> None:
        """So many micro-batches are computed, and the one that reduces gradients, and waits for others, follows."""
        if computed and self.measures(step):
            self._own = (self._now() - self._begun_at) / computed

    def end(self, step: int) -> None:
        """All micro-batches of a step are computed. A collective, at some steps."""
        if not self.measures(step):
            return
        own = torch.tensor([self._own], dtype=torch.float64, device=self._device)
        found = [torch.empty_like(own) for _ in range(self._workers)]
        dist.all_gather(found, own)
        seconds = [value.item() for value in found]
        if any(math.isnan(value) for value in seconds):
            return
        since, before = self._known[-1]
        if since <= step and self._step_time(seconds, seconds) <= WORTHWHILE * self._step_time(seconds, before):
            self._known = [self._known[-1], (step + 1 + self._read_ahead, seconds)]

    def measures(self, step: int) -> bool:
        """Whether this step is measured: after those in which much is done for the first time."""
        return self._workers > 1 and step % INTERVAL == INTERVAL // 2

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        return self._clock()
