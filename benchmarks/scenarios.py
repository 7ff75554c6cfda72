"""What may happen to a run, under whichever system, and what is measured of it. Times are in seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from statistics import median

from benchmarks.history import count_epochs
from benchmarks.jobs import HarnessError, Job
from benchmarks.phases import phases_of_kill, read_event_log
from benchmarks.processes import death, kill
from benchmarks.under_edriver import EdriverJob
from benchmarks.under_nothing import BareJob
from benchmarks.under_ray import EdriverOnRayJob, FourHostsJob, RayTrainJob
from benchmarks.under_torchft import TorchftJob

WARM_STEPS = 45
"""Steps before anything happens: half-way between two of torchrun's checkpoints, which is the average case."""

AFTER_STEPS = 20
"""Steps that are watched when everything is in place again."""

POLL_SECONDS = 1.0
"""edriver's time between two polls of discovery."""

KILLS = 3
"""Kills of a worker on each Ray cluster, of which the median counts."""

ENGINE_BOUND = 300.0
"""Longest that an engine may take to notice a node, and a system to use what it gives."""

LEASE_BOUND = 60.0
"""Longest that a stopped worker may live."""


def killed(make: Callable[[], Job], rank: int, size: int = 4) -> dict[str, float]:
    """K1, K0: `kill -9` of one of four, or of so many."""
    with make() as job:
        _warm_up(job, size)
        pid = job.look()[-1].starts[rank].pid
        now = time.monotonic()
        wall = time.time()
        kill(pid)
        job.wait_for_steps(size=size if job.elastic else size - 1, steps=AFTER_STEPS, after=now)
        found = {"downtime": _first_step(job, now), **_launch(job, size), **_finished(job, now)}
        if job.elastic:
            found["adoption"] = _first_step(job, now, size)
        if isinstance(job, EdriverJob) and job.event_log.exists():
            found |= phases_of_kill(read_event_log(job.event_log), wall)
        return found


def stopped(make: Callable[[], Job], rank: int) -> dict[str, float]:
    """STOP: SIGSTOP of one of four. Its lease is over when it is killed, which a stopped process can be."""
    with make() as job:
        _warm_up(job, 4)
        pid = job.look()[-1].starts[rank].pid
        now = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        ended = death(pid, LEASE_BOUND)
        if ended is None:
            raise HarnessError(f"a stopped worker lives on for {LEASE_BOUND:g} s", job.folder)
        job.wait_for_steps(size=4, steps=AFTER_STEPS, after=now)
        resumed = _first_step(job, now)
        return {"end of the lease": ended - now, "after the lease": now + resumed - ended, **_finished(job, now)}


def resized(make: Callable[[], Job], before: int, after: int) -> dict[str, float]:
    """UP, DOWN: as many workers become as many others."""
    with make() as job:
        _warm_up(job, before)
        now = time.monotonic()
        job.resize(after)
        job.wait_for_steps(size=after, steps=AFTER_STEPS, after=now)
        adoption = _first_step(job, now, after)
        found = {"adoption": adoption, **_finished(job, now)}
        if isinstance(job, EdriverJob):
            found |= _from_the_news(job, now, adoption)
        return found


def replica_joined(make: Callable[[], EdriverJob]) -> dict[str, float]:
    """HSDP UP: to a replica of two another one comes. What a step takes then is no part of the pause."""
    with make() as job:
        _warm_up(job, 2)
        now = time.monotonic()
        job.resize(4)
        job.wait_for_steps(size=4, steps=AFTER_STEPS, after=now)
        adoption = _first_step(job, now, 4)
        found = {"adoption": adoption, **_finished(job, now), **_from_the_news(job, now, adoption)}
        step = job.history.step_seconds(4)
        return {**found, "step of 4": step, "pause beyond a step": found["longest pause"] - step}


def cut_anew(make: Callable[[], EdriverJob]) -> dict[str, float]:
    """HSDP ALL: one of four that are one replica is killed; three go on, and its replacement makes four of them again.

    The second pause is that between the last step of three and the first of four: the replacement has booted before.
    """
    with make() as job:
        _warm_up(job, 4)
        now = time.monotonic()
        kill(job.look()[-1].starts[2].pid)
        job.wait_for_steps(size=4, steps=AFTER_STEPS, after=now)
        downtime, adoption = _first_step(job, now, 3), _first_step(job, now, 4)
        before = job.history.last_completion(now + adoption, 3)
        assert before is not None, "three have finished a step"
        pause = now + adoption - before
        found = {"4 to 3": downtime, "3 to 4": pause, "adoption": adoption, **_finished(job, now)}
        three, four = job.history.step_seconds(3), job.history.step_seconds(4)
        steps = {"step of 3": three, "step of 4": four}
        return {**found, **steps, "4 to 3 beyond a step": downtime - three, "3 to 4 beyond a step": pause - four}


def on_ray(make: Callable[[], EdriverOnRayJob | RayTrainJob]) -> dict[str, float]:
    """RAY: a worker of four is killed, then the node of another, then a node is added."""
    with make() as job:
        began = _warm_up_on_four(job)
        found = _killed_again_and_again(job)
        now = time.monotonic()
        job.nodes.kill(job.look()[-1].starts[2].host)
        job.wait_for_steps(size=3, steps=AFTER_STEPS, after=now, bound=ENGINE_BOUND)
        found["a node killed"] = _first_step(job, now)
        job.nodes.add()
        now = time.monotonic()
        job.wait_for_steps(size=4, steps=AFTER_STEPS, after=now, bound=ENGINE_BOUND)
        found["a node added: to its first step"] = _first_step(job, now, 4)
        found["a node added: pause"] = job.history.longest_pause(now)
        return {**found, **_finished(job, began)}


def without_ray(make: Callable[[], FourHostsJob]) -> dict[str, float]:
    """RAY, beside it: the same kills where edriver starts its agents by itself."""
    with make() as job:
        began = _warm_up_on_four(job)
        return {**_killed_again_and_again(job), **_finished(job, began)}


def _warm_up_on_four(job: Job) -> float:
    job.launch(4)
    job.wait_for_steps(size=4, steps=WARM_STEPS, bound=ENGINE_BOUND)
    job.settle()
    return time.monotonic()


def _killed_again_and_again(job: Job) -> dict[str, float]:
    times = []
    for _ in range(KILLS):
        now = time.monotonic()
        kill(job.look()[-1].starts[2].pid)
        job.wait_for_steps(size=4, steps=AFTER_STEPS, after=now, bound=ENGINE_BOUND)
        times.append(_first_step(job, now))
    return {"a worker killed": median(times)}


def _from_the_news(job: EdriverJob, now: float, adoption: float) -> dict[str, float]:
    """What is left of an adoption without what is not edriver's: the newcomers' boots, the polls of discovery."""
    boot = job.history.longest_boot(now)
    if boot is not None:
        return {"own boot": boot, "adoption beyond boot": adoption - boot - POLL_SECONDS}
    first, second = job.answers(after=now)[:2]  # a host leaves at the second answer without it
    return {"first answer to first step": now + adoption - first, "answer to first step": now + adoption - second}


def _warm_up(job: Job, size: int) -> None:
    job.launch(size)
    job.wait_for_steps(size=size, steps=WARM_STEPS)
    job.settle()


def _first_step(job: Job, now: float, size: int | None = None) -> float:
    """Seconds from then to the first step that all members of a later round (of that size) finished."""
    found = job.history.first_completion(now, size)
    if found is None:
        raise HarnessError("no step was finished after the change", job.folder)
    return found - now


def _launch(job: Job, size: int = 4) -> dict[str, float]:
    found = {"launch to the first step": _first_step(job, job.launched, size)}
    if grouped := job.history.rounds[0].grouped:
        found["launch to the group"] = max(grouped.values()) - job.launched
    return found


def _finished(job: Job, now: float) -> dict[str, float]:
    """End the run; the figures that need all of it."""
    code = job.finish()
    if code != 0:
        job.keep()
        raise HarnessError(f"the run ended with {code}", job.folder)
    found = {"longest pause": job.history.longest_pause(now)}
    if not isinstance(job, BareJob):
        found["steps lost"] = job.history.steps_lost()
    if not isinstance(job, BareJob | TorchftJob):  # the one makes no promise, the other's sampler is lossy by design
        epochs = count_epochs(job.history, job.workload.samples)
        found["samples lost"] = sum(epoch.lost for epoch in epochs)
        found["samples repeated"] = sum(epoch.repeated for epoch in epochs)
    return found
