"""The thread that takes samples, beside the agent's event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from edriver.agent.resources.sample import Sample, WorkerPlace

if TYPE_CHECKING:
    from edriver.agent.resources.sampler import Sampler

logger = logging.getLogger("edriver.agent")

SAMPLE_PERIOD: Final = 2.0
"""Seconds between two samples."""


def _sampler() -> Sampler:
    from edriver.agent.resources.sampler import Sampler  # with psutil, once the first workers are on their way

    return Sampler()


class Sampling:
    """Has samples taken, one at a time, for as long as the event loop in which it was made runs.

    A sample that hangs, in a driver of the kernel's for example, holds up nothing else: no other is asked for, and the
    thread ends with the process.

    Args:
        workers: those that there are.
        take: called in the event loop with each sample.
        make: makes the sampler, in the thread.
        period: see SAMPLE_PERIOD.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[WorkerPlace]],
        take: Callable[[Sample], None],
        make: Callable[[], Sampler] = _sampler,
        period: float = SAMPLE_PERIOD,
    ) -> None:
        self._workers = workers
        self._take = take
        self._make = make
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._asked: queue.SimpleQueue[Sequence[WorkerPlace] | None] = queue.SimpleQueue()
        self._waiting = False

    async def run(self) -> None:
        """Take samples until cancelled, or until one fails: that is logged once, and workers continue without."""
        threading.Thread(target=self._serve, name="edriver-sampling", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(self._period)
                if not self._waiting:
                    self._waiting = True
                    self._asked.put(self._workers())
        finally:
            self._asked.put(None)

    def _serve(self) -> None:
        try:
            sampler = self._make()
            while (workers := self._asked.get()) is not None:
                sample = sampler.sample(workers)
                with suppress(RuntimeError):  # the loop is closed: the agent is ending
                    self._loop.call_soon_threadsafe(self._arrived, sample)
        except Exception:
            logger.warning(
                "the workers' resource usage is not known: an internal error of edriver, please report it",
                exc_info=True,
            )

    def _arrived(self, sample: Sample) -> None:
        self._waiting = False
        self._take(sample)
