"""Which of a worker's progress goes to the driver in a run so large that it cannot take in all of it; pure."""

from __future__ import annotations

from edriver.v1 import notification_pb2


class ProgressReports:
    """One worker's.

    Attributes:
        leads: whether it has rank 0, by which the progress of the run is known.
    """

    def __init__(self) -> None:
        self.leads = False
        self._last: tuple[float, notification_pb2.WorkerProgress] | None = None

    def forget(self) -> None:
        """What was sent may not have arrived, or says nothing any more: the next progress is sent."""
        self._last = None

    def is_due(self, progress: notification_pb2.WorkerProgress, period: float, now: float) -> bool:
        """Whether to send this progress now; then it counts as sent.

        Args:
            progress: the latest.
            period: seconds between two that are sent, unless something in them must be known at once.
            now: seconds of a clock that only grows.
        """
        if self._last is not None and not self.leads:
            sent_at, sent = self._last
            if now - sent_at < period and not _is_urgent(sent, progress):
                return False
        self._last = now, progress
        return True


def _is_urgent(before: notification_pb2.WorkerProgress, now: notification_pb2.WorkerProgress) -> bool:
    """Whether the worker has entered a round, or does something else while no step is made."""
    return (
        now.round_id != before.round_id
        or now.standing.activity != before.standing.activity
        or now.standing.place != before.standing.place
    )
