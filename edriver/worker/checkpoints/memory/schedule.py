"""At which steps the ranks of a round save. Pure.

All ranks must save the same steps, and their clocks differ. So an interval is a number of steps. Where a time is given,
or nothing, rank 0 measures how long steps and saves take, and announces at a save which interval holds from the next
one on; the others read that before they leave that next one. Until the first announcement the intervals double.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from edriver.worker.checkpoints.memory.shard import DueForDisk

MOST_OF_TIME: Final = 0.01
"""Which part of training saves may take in the loop, if no interval is given."""

MAX_INTERVAL: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Announced:
    """From a step on, save each so many steps."""

    base: int
    interval: int


class Schedule:
    """Which steps are saved.

    Args:
        every: each so many steps; a time, in steps as rank 0 measures them; None: so that saves take MOST_OF_TIME.

    Raises:
        ValueError: it is not positive.
    """

    def __init__(self, every: int | timedelta | None) -> None:
        if every is not None:
            require_positive(every)
        self._every = every
        self._last: int | None = None
        self._next: int | None = None
        self._doubled = 1
        self._active: Announced | None = None

    @property
    def is_announced(self) -> bool:
        """Whether rank 0 decides while training goes on."""
        return not isinstance(self._every, int)

    def due(self, step: int) -> bool:
        """Whether to save this step. Ask for each step that the script offers, which are the same on all ranks."""
        if isinstance(self._every, int):
            last, self._last = self._last, step
            if last is None:
                return step > 0 and step % self._every == 0
            return step // self._every > last // self._every
        if self._next is None:
            self._next = step + 1
        return step >= self._next

    def take(self, announced: Announced) -> None:
        """Follow an announcement."""
        self._active = announced

    def advance(self, step: int) -> None:
        """A step that was due has been dealt with."""
        if isinstance(self._every, int):
            return
        assert self._next is not None, "it was due"
        if self._active is not None and self._active.base <= self._next:
            base, interval = self._active.base, self._active.interval
            self._next = base + ((step - base) // interval + 1) * interval
            return
        self._doubled = min(2 * self._doubled, MAX_INTERVAL)
        self._next = step + self._doubled

    def announcement(self, step_seconds: float, save_seconds: float) -> Announced | None:
        """On rank 0, after `advance`: what to announce; None: the interval stays.

        Args:
            step_seconds: how long a step takes,
            save_seconds: and a save, in the loop.
        """
        assert self._next is not None, "a step was due"
        seconds = self._every.total_seconds() if isinstance(self._every, timedelta) else save_seconds / MOST_OF_TIME
        wanted = min(MAX_INTERVAL, max(1, math.ceil(seconds / max(step_seconds, 1e-9))))
        if self._active is not None and 0.7 <= wanted / self._active.interval <= 1.4:
            return None
        return Announced(self._next, wanted)


class DiskSchedule:
    """Which of the checkpoints in memory go to disk. Rank 0 decides it.

    Args:
        every: each so many steps, or a time.
        clock: seconds since the epoch: the next process, perhaps on another host, goes on from there.

    Attributes:
        last: when one was last due: the step, and the time.
    """

    def __init__(self, every: int | timedelta, clock: Callable[[], float] = time.time) -> None:
        self._every = every
        self._clock = clock
        self.last = DueForDisk(0, clock())

    def go_on(self, last: DueForDisk) -> None:
        """Go on where a process before this one was."""
        self.last = DueForDisk(last.step, min(last.time, self._clock()))

    def after(self, step: int) -> DueForDisk:
        """What `last` is once this step is in memory: another if it is to go to disk."""
        now = self._clock()
        if isinstance(self._every, int):
            due = step // self._every > self.last.step // self._every
        else:
            due = now - self.last.time >= self._every.total_seconds()
        return DueForDisk(step, now) if due else self.last


def require_positive(every: object) -> None:
    """Refuse what is no interval.

    Raises:
        ValueError: it is not positive, or no whole number of steps.
    """
    if isinstance(every, timedelta):
        positive = every > timedelta(0)
    else:
        positive = isinstance(every, int) and not isinstance(every, bool) and every > 0
    if not positive:
        raise ValueError(f"an interval between checkpoints is a positive number of steps or a time, not {every!r}")
