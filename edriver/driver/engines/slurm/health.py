"""What becomes of the jobs: which run without an agent, and whether the next would fail as the last did. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from edriver.driver.engines.pause import Pause
from edriver.driver.engines.slurm.jobs import FAILED_STATES, RUNNING_STATES, Job

FIRST_PAUSE: Final = 5.0
LAST_PAUSE: Final = 300.0
"""Seconds without a submission after one that Slurm has refused, or after a job that has failed: the first, and, after
it has doubled each time, the last."""

STEADY: Final = 60.0
"""Seconds after which a running job does not count as one that fails at once."""

JOIN_TIMEOUT: Final = 120.0
"""Seconds that a job may run before its agent has dialled in: its node may boot first, or wait for a file system."""


class JobHealth:
    """Looks at the run's jobs, again and again.

    Attributes:
        pause: until when no job is to be submitted, because jobs fail.
    """

    def __init__(self) -> None:
        """No job has been seen yet."""
        self.pause = Pause(FIRST_PAUSE, LAST_PAUSE)
        self._failed: set[str] = set()
        self._running_since: dict[str, float] = {}
        self._joined: set[str] = set()

    def new_failures(self, jobs: Sequence[Job], now: float) -> list[str]:
        """Take in the jobs; returns the ids of those that have failed since the last look."""
        running = {job.host for job in jobs if job.state in RUNNING_STATES}
        self._running_since = {host: self._running_since.get(host, now) for host in running}
        self._joined &= running
        if any(now - self._running_since[host] >= STEADY for host in self._joined):
            self.pause.end()
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
        running = [job for job in jobs if job.host in self._running_since]
        self._joined |= {job.host for job in running} & {*hosts}
        return [
            job
            for job in running
            if job.host not in hosts
            and (job.host in self._joined or now - self._running_since[job.host] >= JOIN_TIMEOUT)
        ]
