"""The four scenarios of churn, each under both systems, and what is measured in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.history import count_epochs
from benchmarks.jobs import EdriverJob, HarnessError, Job, TorchrunJob, Workload
from benchmarks.processes import kill

WARM_STEPS = 45
"""Steps before anything happens: half-way between two of torchrun's checkpoints, which is the average case."""

AFTER_STEPS = 20
"""Steps that are watched when everything is in place again."""

HOME, GUEST = "127.0.0.1", "127.0.0.2"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of a scenario gave. Times are in seconds.

    Attributes:
        downtime: from the kill to the first step that all members of the next round finished.
        adoption: from the change (the kill; the edit of the hosts file, the start or the end of an agent) to the first
            step that as many workers as there are to be finished.
        pause: the longest time between two steps that rank 0 finished in a row, from the change to the end.
        steps_lost: steps that were finished by anybody and trained again.
        samples_lost: samples that an epoch never saw.
        samples_repeated: samples that an epoch saw twice, end padding aside.
    """

    downtime: float | None
    adoption: float
    pause: float
    steps_lost: int
    samples_lost: int
    samples_repeated: int


def _edriver_kill(rank: int) -> Figures:
    with EdriverJob(Workload()) as job:
        job.start({HOME: 2, GUEST: 2}, np=4)
        return _kill(job, rank)


def _torchrun_kill(rank: int) -> Figures:
    with TorchrunJob(Workload(), max_nodes=1, workers=4) as job:
        job.start_agent()
        return _kill(job, rank)


def _kill(job: Job, rank: int) -> Figures:
    job.wait_for_steps(size=4, steps=WARM_STEPS)
    pid = job.look()[-1].starts[rank].pid
    now = time.monotonic()
    kill(pid)
    job.wait_for_steps(size=4, steps=AFTER_STEPS, after=now)
    return _figures(job, now, size=4, killed=True)


def _edriver_resize(before: dict[str, int], after: dict[str, int]) -> Figures:
    with EdriverJob(Workload()) as job:
        job.start(before, np=sum(before.values()))
        job.wait_for_steps(size=sum(before.values()), steps=WARM_STEPS)
        now = time.monotonic()
        job.set_hosts(after)
        return _resized(job, now, size=sum(after.values()))


def _torchrun_up() -> Figures:
    with TorchrunJob(Workload(), max_nodes=2, workers=2) as job:
        job.start_agent()
        job.wait_for_steps(size=2, steps=WARM_STEPS)
        now = time.monotonic()
        job.start_agent()
        return _resized(job, now, size=4)


def _torchrun_down() -> Figures:
    with TorchrunJob(Workload(), max_nodes=2, workers=2) as job:
        job.start_agent()
        job.start_agent()
        job.wait_for_steps(size=4, steps=WARM_STEPS)
        now = time.monotonic()
        job.stop_agent()
        return _resized(job, now, size=2)


def _resized(job: Job, now: float, size: int) -> Figures:
    job.wait_for_steps(size=size, steps=AFTER_STEPS, after=now)
    return _figures(job, now, size, killed=False)


def _figures(job: Job, now: float, size: int, killed: bool) -> Figures:
    code = job.finish()
    if code != 0:
        job.keep()
        raise HarnessError(f"the run ended with {code}", job.folder)
    history = job.history
    adopted = history.first_completion(now, size)
    resumed = history.first_completion(now)
    if adopted is None or resumed is None:
        raise HarnessError("no step was finished after the change", job.folder)
    epochs = count_epochs(history, job.workload.samples)
    return Figures(
        downtime=resumed - now if killed else None,
        adoption=adopted - now,
        pause=history.longest_pause(now),
        steps_lost=history.steps_lost(),
        samples_lost=sum(epoch.lost for epoch in epochs),
        samples_repeated=sum(epoch.repeated for epoch in epochs),
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of churn under each system.

    Attributes:
        name: as on the command line.
        what: what happens.
        edriver: runs it once.
        torchrun: runs it once.
    """

    name: str
    what: str
    edriver: Callable[[], Figures]
    torchrun: Callable[[], Figures]


SCENARIOS = (
    Scenario("K1", "`kill -9` of rank 2 of 4", lambda: _edriver_kill(2), lambda: _torchrun_kill(2)),
    Scenario("K0", "`kill -9` of rank 0 of 4", lambda: _edriver_kill(0), lambda: _torchrun_kill(0)),
    Scenario("UP", "2 workers become 4", lambda: _edriver_resize({HOME: 2}, {HOME: 2, GUEST: 2}), _torchrun_up),
    Scenario("DOWN", "4 workers become 2", lambda: _edriver_resize({HOME: 2, GUEST: 2}, {HOME: 2}), _torchrun_down),
)
