"""How far training was from the run's beginning on: for those who come later."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edriver.common.downsample import Thinned
from edriver.driver.observe.progress import Pace
from edriver.v1 import agent_pb2, status_pb2


class ProgressHistory:
    """Remembers a bounded number of samples; the longer the run, the farther they lie apart.

    Args:
        pace: tells how far training is.
        clock: seconds since the epoch.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._samples: Thinned[status_pb2.Progress] = Thinned()

    def heard(self, said: agent_pb2.WorkerStanding) -> None:
        """A worker has said how far it has come, and the pace knows. What rank 0 says is progress."""
        if said.worker_id != self._pace.first:
            return
        now = self._clock()
        if self._samples.due(now) and (progress := self._pace.progress()):
            self._samples.add(now, progress)

    def samples(self) -> Iterator[status_pb2.ProgressSample]:
        """All that are remembered, oldest first."""
        return (status_pb2.ProgressSample(time=time, progress=progress) for time, progress in self._samples.kept)
