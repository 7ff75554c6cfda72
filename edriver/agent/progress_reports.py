"""Which of a worker's progress goes to the driver in a run so large that it cannot take in all of it; pure."""

from __future__ import annotations

from edriver.v1 import notification_pb2
from edriver.wire.conversion import span_seconds


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

    def note_sent(self, progress: notification_pb2.WorkerProgress, now: float) -> None:
        """This progress is sent in another way. What was never sent in a heartbeat is: that has the process, too."""
        if self._last is not None:
            self._last = now, progress


class RoundReports:
    """Shortens what a host's workers report when a round begins or ends, in a run of thousands.

    How far a round has come is known by the progress of those that are farthest. What the others have counted comes
    with later heartbeats.
    """

    def __init__(self) -> None:
        self._farthest = notification_pb2.WorkerProgress()

    def shorten(self, report: notification_pb2.Report, sent: ProgressReports, now: float) -> None:
        """Have the driver hear nothing twice.

        Args:
            report: what a worker reports; its progress is removed if the driver can do without it.
            sent: which of its progress has been sent.
            now: seconds of a clock that only grows.
        """
        if not report.HasField("progress"):
            return
        if report.HasField("first_boundary_passed"):
            sent.note_sent(report.progress, now)
        elif report.HasField("worker_waiting") and not (sent.leads or self._is_news(report.progress)):
            report.ClearField("progress")

    def _is_news(self, progress: notification_pb2.WorkerProgress) -> bool:
        """Whether a worker that comes back with this has more to say than those before it; then it counts as said."""
        if progress.round_id == self._farthest.round_id and not _is_farther(self._farthest, progress):
            return False
        self._farthest = progress
        return True


def _is_farther(before: notification_pb2.WorkerProgress, now: notification_pb2.WorkerProgress) -> bool:
    """Whether a worker has passed more boundaries of a round than another, or has declared more of its time."""
    if now.boundaries != before.boundaries:
        return now.boundaries > before.boundaries
    return span_seconds(now.declared_duration) > span_seconds(before.declared_duration)


def _is_urgent(before: notification_pb2.WorkerProgress, now: notification_pb2.WorkerProgress) -> bool:
    """Whether the worker has entered a round, or does something else while no step is made."""
    return (
        now.round_id != before.round_id
        or now.standing.activity != before.standing.activity
        or now.standing.place != before.standing.place
    )
