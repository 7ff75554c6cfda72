"""What becomes of the jobs: which run without an agent, and whether the next would fail as the last did. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from edriver.driver.engines.slurm.jobs import FAILED_STATES, RUNNING_STATES, Job

FIRST_PAUSE: Final = 5.0
LAST_PAUSE: Final = 300.0
"""Seconds without a submission after one that Slurm has refused, or after a job that has failed: the first, and, after
it has doubled each time, the last."""

STEADY: Final = 60.0
"""Seconds after which a job that runs is none that fails at once."""

JOIN_TIMEOUT: Final = 120.0
"""Seconds that a job may run before its agent has dialled in: its node may boot first, or wait for a file system."""


class Pause:
    """A time without submissions, twice as long each time.

    Attributes:
        until: when it is over.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._seconds = FIRST_PAUSE

    def begin(self, now: float) -> float:
        """Begin one; returns how many seconds it takes."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, LAST_PAUSE)
        self.until = now + seconds
        return seconds


class JobHealth:
    """Looks at the run's jobs, again and again.

    Attributes:
        pause: until when no job is to be submitted, because jobs fail.
    """

    def __init__(self) -> None:
        """No job has been seen yet."""
        self.pause = Pause()
        self._failed: set[str] = set()
        self._running_since: dict[str, float] = {}
        self._joined: set[str] = set()

    def new_failures(self, jobs: Sequence[Job], now: float) -> list[str]:
        """Take in the jobs; returns the ids of those that have failed since the last look."""
        running = {job.job_id for job in jobs if job.state in RUNNING_STATES}
        self._running_since = {job_id: self._running_since.get(job_id, now) for job_id in running}
        self._joined &= running
        if any(now - self._running_since[job_id] >= STEADY for job_id in self._joined):
            self.pause = Pause()
        failed = {job.job_id for job in jobs if job.state in FAILED_STATES}
        new = sorted(failed - self._failed)
        self._failed = failed
        return new

    def without_agent(self, jobs: Sequence[Job], hosts: Collection[str], now: float) -> list[Job]:
        """The jobs that run for nothing: their agent was there and is not any more, or it has not come for too long.

        Args:
            jobs: as `new_failures` has taken them in.
            hosts: the hosts that the run knows.
            now: in seconds.
        """
        running = [job for job in jobs if job.job_id in self._running_since]
        there = {job.job_id for job in running if job.host in hosts}
        self._joined |= there
        return [
            job
            for job in running
            if job.job_id not in there
            and (job.job_id in self._joined or now - self._running_since[job.job_id] >= JOIN_TIMEOUT)
        ]
