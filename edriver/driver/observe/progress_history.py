"""The training progress since the run began, for observers that connect later."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edriver.common.downsample import Downsampled
from edriver.driver.observe.progress import ProgressTracker
from edriver.v1 import agent_pb2, status_pb2
from edriver.wire.conversion import timestamp


class ProgressHistory:
    """Remembers a bounded number of samples; the longer the run, the farther they lie apart.

    Args:
        tracker: the training progress.
        clock: seconds since the epoch.
    """

    def __init__(self, tracker: ProgressTracker, clock: Callable[[], float]) -> None:
        self._tracker = tracker
        self._clock = clock
        self._samples: Downsampled[status_pb2.Progress] = Downsampled()

    def record_progress(self, report: agent_pb2.WorkerHeartbeat) -> None:
        """Record a worker's progress, which the tracker has already. Only rank 0's counts."""
        if report.worker_id != self._tracker.first:
            return
        now = self._clock()
        if self._samples.due(now) and (progress := self._tracker.progress()):
            self._samples.add(now, progress)

    def samples(self) -> Iterator[status_pb2.ProgressSample]:
        """All that are remembered, oldest first."""
        return (
            status_pb2.ProgressSample(time=timestamp(time), progress=progress)
            for time, progress in self._samples.samples
        )
