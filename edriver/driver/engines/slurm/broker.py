"""`--slurm-partition`: asks Slurm for hosts, as one-node jobs whose agents dial in, and gives back what is spare.

Slurm lets a job that it requeues wait for two minutes, so another is submitted instead. A host in use counts as a job
even where slurmctld has given its node up: a job in its place would bring a host without use, and after that the next.
slurmctld is asked every 5 s, because all users share it.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Final

from edriver.driver.core.demand import Demand
from edriver.driver.engines.pause import Pause
from edriver.driver.engines.slurm.commands import RunCommand, SlurmError, run_command
from edriver.driver.engines.slurm.health import FIRST_PAUSE, LAST_PAUSE, JobHealth
from edriver.driver.engines.slurm.jobs import (
    JOB_FORMAT,
    Job,
    parse_jobs,
    plan,
    queue_text,
)
from edriver.driver.engines.slurm.submission import Submission
from edriver.driver.launch.broker import BrokerContext, BrokerError, UnusableBrokerError
from edriver.text.phrases import count_text
from edriver.text.printable import printable

_log = logging.getLogger("edriver.driver")

LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks at the queue, which is slurmctld's, and so the whole cluster's."""


class JobBroker:
    """Has as many one-node jobs in the queue as the run can use.

    Args:
        submission: what the jobs are.
        run: runs a command of Slurm.
        clock: seconds, monotonic.
    """

    def __init__(self, submission: Submission, run: RunCommand, clock: Callable[[], float]) -> None:
        self._submission = submission
        self._run = run
        self._clock = clock
        self._next_look = clock()
        self._slots = 0
        self._refused = Pause(FIRST_PAUSE, LAST_PAUSE)
        self._health = JobHealth()
        self._said = ""
        self._trouble = ""
        self._accepted = False

    @classmethod
    def of(cls, context: BrokerContext) -> JobBroker:
        """The broker of a run: `--broker slurm=PARTITION`, and more arguments for sbatch after a space.

        Raises:
            ValueError: the arguments cannot be split into words.
        """
        partition, _, arguments = context.argument.partition(" ")
        submission = Submission(
            run_id=context.run_id,
            partition=partition,
            arguments=shlex.split(arguments),
            slots=context.slots_per_host,
            driver=context.driver,
            credentials=str(context.credentials),
        )
        return cls(submission, run_command, time.monotonic)

    async def reconcile(self, demand: Demand) -> None:
        """Look at the queue now and then; submit what is missing, cancel what is too much.

        Raises:
            BrokerError: Slurm does not answer.
            UnusableBrokerError: Slurm has refused the first job of all: its partition or its arguments may be wrong, or
                a quota used up.
        """
        now = self._clock()
        if now >= self._next_look or demand.slots != self._slots:
            self._slots = demand.slots
            self._next_look = now + LOOK_INTERVAL
            try:
                await self._look(demand, now)
                self._trouble = ""
            except SlurmError as error:
                self._trouble = f"Slurm does not answer: {printable(str(error))}"
        if self._trouble:
            raise BrokerError(self._trouble)

    async def close(self) -> None:
        """Cancel all jobs of the run.

        Raises:
            BrokerError: they may be left.
        """
        name = f"--name={self._submission.name}"
        try:
            await self._run(("scancel", "--quiet", name))
        except SlurmError as error:
            text = printable(str(error))
            raise BrokerError(f"the run's jobs may be left in Slurm ({text}): run scancel {name} there") from error

    async def _look(self, demand: Demand, now: float) -> None:
        jobs = await self._jobs()
        self._note_failures(self._health.new_failures(jobs, now), now)
        lost = self._health.without_agent(jobs, demand.hosts, now)
        unused = {*demand.unused, *(job.host for job in lost)}
        size, requeued = self._submission.slots, self._submission.requeued
        todo = plan(jobs, demand.slots, size, demand.hosts, unused, requeued=requeued)
        if todo.cancel:
            await self._cancel(todo.cancel)
        if todo.submit and now >= max(self._refused.until, self._health.pause.until):
            await self._submit(todo.submit, now)
        elif now >= self._refused.until:
            self._say(queue_text(jobs))

    async def _jobs(self) -> list[Job]:
        """All jobs of the run, those that have ended a short while ago among them."""
        name = f"--name={self._submission.name}"
        return parse_jobs(await self._run(("squeue", "--noheader", "--states=all", name, f"--format={JOB_FORMAT}")))

    async def _submit(self, count: int, now: float) -> None:
        try:
            for _ in range(count):
                await self._run(self._submission.command)
                self._accepted = True
        except SlurmError as error:
            if not self._accepted:
                raise UnusableBrokerError(f"Slurm does not accept jobs of this run: {printable(str(error))}") from error
            seconds = self._refused.begin(now)
            self._say(
                f"Slurm does not accept the job: {printable(str(error))}; the next try is in {seconds:g} s",
                logging.WARNING,
            )
            return
        self._refused.end()
        _log.info("submitted %s to Slurm's partition %s", count_text(count, "job"), self._submission.partition)

    async def _cancel(self, ids: Sequence[str]) -> None:
        await self._run(("scancel", "--quiet", *ids))
        _log.info("cancelled %s in Slurm that the run does not need", count_text(len(ids), "job"))

    def _note_failures(self, failed: Sequence[str], now: float) -> None:
        if failed:
            seconds, output = self._health.pause.begin(now), f"{self._submission.name}.slurm.out"
            numbers = ", ".join(failed[:3])
            _log.warning("job %s in Slurm has failed, see %s; the next is submitted in %g s", numbers, output, seconds)

    def _say(self, text: str, level: int = logging.INFO) -> None:
        """Say it, if it is new."""
        if text and text != self._said:
            _log.log(level, "%s", text)
        self._said = text
