"""When a worker got how far on its way from one round into the next: what the driver's event log is made of."""

from __future__ import annotations

import time
from collections.abc import Callable

from edriver.model.ids import RoundId
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import duration, round_id_message, timestamp
from edriver.worker.reports import Copied


class RoundTimes:
    """The times since the last round's first boundary.

    Args:
        clock: seconds since the epoch, so that the times of several hosts can be compared.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._times = pb.RoundTimes()

    def mark(self, name: str) -> None:
        """Note that a field of pb.RoundTimes is due now; the last time counts."""
        getattr(self._times, name).CopyFrom(timestamp(self._clock()))

    def first_boundary(self, round_id: RoundId, copied: Copied, digest: str = "") -> pb.Report:
        """The round's first boundary is passed: returns the report to the driver, and starts again."""
        self.mark("stepped")
        times, self._times = self._times, pb.RoundTimes()
        times.received_bytes = copied.received_bytes
        times.commit_bytes = copied.commit_bytes
        if copied.commit_seconds:
            times.commit_duration.CopyFrom(duration(copied.commit_seconds))
        return pb.Report(
            first_boundary_passed=pb.FirstBoundaryPassed(
                round_id=round_id_message(round_id), times=times, digest=digest
            )
        )
