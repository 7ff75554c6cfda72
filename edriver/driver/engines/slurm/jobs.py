"""One-node jobs that bring agents to a run: what Slurm says of them, and which to submit and to cancel. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

JOB_FORMAT: Final = "%i|%T|%r|%N"
"""What squeue is to print of a job: its id, state, why it waits, and its node."""

WAITING_STATES: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
"""States in which a job has no node yet, or no longer."""

RUNNING_STATES: Final = frozenset(
    {"CONFIGURING", "RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
)
"""States in which a job has a node. In all other states a job has ended, or is about to."""

COMPLETING: Final = "COMPLETING"
"""The state of a job that has ended, or is to be queued again, while something of it is still on its node."""

FAILED_STATES: Final = frozenset({"BOOT_FAIL", "DEADLINE", "FAILED", "OUT_OF_MEMORY"})
"""States of jobs that have ended by a fault, which the next one may have, too."""

MAX_SUBMISSIONS: Final = 16
"""Most jobs that are submitted at a time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as squeue lists it.

    Attributes:
        job_id: its number.
        state: its state, as squeue's %T.
        reason: why it waits, as squeue's %r.
        node: its node; empty without one.
    """

    job_id: str
    state: str
    reason: str
    node: str

    @property
    def host(self) -> str:
        """The name of its host in the run: jobs on one node, at a time or one after another, are different hosts."""
        return f"{self.node}.job{self.job_id}"


@dataclass(frozen=True, slots=True)
class JobChanges:
    """The changes to make.

    Attributes:
        submit: the number of jobs to submit.
        cancel: the IDs of the jobs to cancel.
    """

    submit: int = 0
    cancel: tuple[str, ...] = ()


def parse_jobs(text: str) -> list[Job]:
    """The jobs of what squeue prints in JOB_FORMAT; lines of any other form are passed over."""
    fields = (line.strip().split("|") for line in text.splitlines())
    return [Job(*each) for each in fields if len(each) == 4]


def plan(
    jobs: Sequence[Job],
    slots: int,
    slots_per_job: int,
    hosts: Collection[str],
    unused: Collection[str],
    *,
    requeued: bool = False,
) -> JobChanges:
    """Decide how to adapt the number of jobs to what the run can use.

    Jobs whose host the run does not use and will not use are cancelled, and replaced if the run can use other jobs. If
    there are too many jobs, waiting ones are cancelled, the latest first; never one whose host is used.

    A used host counts even if Slurm has no job for it: the agent on a node that Slurm has given up may be alive.

    Args:
        jobs: the run's jobs.
        slots: the number of slots that the run can use.
        slots_per_job: the number of slots of each job.
        hosts: the hosts that the run knows.
        unused: the hosts of which no slot is or will be used.
        requeued: whether Slurm may requeue a job that it has ended; Slurm says so once the job has left its node.
    """
    waiting = [job for job in jobs if job.state in WAITING_STATES]
    running = [job for job in jobs if job.state in RUNNING_STATES]
    there = {*(job.host for job in running), *hosts} - {*unused}
    missing = math.ceil(slots / slots_per_job) - len(waiting) - len(there)
    coming_back = sum(job.state == COMPLETING for job in jobs) if requeued else 0
    surplus = waiting[::-1][: max(-missing, 0)]
    spare = [job for job in running if job.host in unused]
    submit = min(max(missing - coming_back, 0), MAX_SUBMISSIONS)
    return JobChanges(submit, tuple(job.job_id for job in (*surplus, *spare)))


def queue_text(jobs: Sequence[Job]) -> str:
    """The jobs that wait, and why, in words; empty: none waits."""
    waiting = [job for job in jobs if job.state in WAITING_STATES]
    if not waiting:
        return ""
    reasons = (
        ", ".join(sorted({job.reason for job in waiting if job.reason not in ("", "None")})) or "reason not known yet"
    )
    return f"{len(waiting)} job{'s wait' if len(waiting) > 1 else ' waits'} in Slurm's queue ({reasons})"
