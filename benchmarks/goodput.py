"""GOODPUT: with an event every ten seconds, the share of an undisturbed run's steps that a run makes.

The undisturbed run is measured right before and right after: on a virtual machine, minutes make a tenth of difference.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.jobs import Job, Workload
from benchmarks.processes import kill
from benchmarks.scenarios import WARM_STEPS
from benchmarks.under_nothing import BareJob

SECONDS = 120.0
INTERVAL = 10.0
SIZES = (4, 3, 2, 1)
RATE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Loss:
    """`kill -9` of one worker.

    Attributes:
        choice: which, as a fraction of those there are.
    """

    choice: float


@dataclass(frozen=True, slots=True)
class Change:
    """The run is to have another number of workers.

    Attributes:
        size: 2 or 4.
    """

    size: int


def events(seed: int, count: int) -> list[Loss | Change]:
    """What happens to a run that begins with 4 workers. Pure: a seed gives the same events every time."""
    rng = random.Random(seed)
    found: list[Loss | Change] = []
    size = 4
    for _ in range(count):
        if rng.random() < 0.5:
            found.append(Loss(rng.random()))
        else:
            size = 6 - size
            found.append(Change(size))
    return found


def undisturbed_steps(seconds_by_size: Mapping[int, float], rates: Mapping[int, float]) -> float:
    """The steps that an undisturbed run makes.

    Args:
        seconds_by_size: how long it has which size.
        rates: its steps a second, by size.
    """
    return sum(seconds * rates[size] for size, seconds in seconds_by_size.items())


def goodput(make: Callable[[], Job], seed: int) -> dict[str, float]:
    """Train for two minutes, while things happen."""
    before = undisturbed()
    steps, seconds_by_size = _disturbed(make, seed)
    after = undisturbed()
    at_most = undisturbed_steps(seconds_by_size, {size: (before[size] + after[size]) / 2 for size in SIZES})
    return {"steps that count": steps, "undisturbed steps": at_most, "goodput": steps / at_most}


def undisturbed() -> dict[int, float]:
    """Steps a second of a run with torch alone, by size: what the survivors of each kill make."""
    found = {}
    with BareJob(Workload()) as job:
        job.launch(SIZES[0])
        for size in SIZES:
            job.wait_for_steps(size=size, steps=WARM_STEPS)
            begin = time.monotonic()
            _sleep_until(begin + RATE_SECONDS)
            last = job.look()[-1]
            found[size] = job.history.counted_steps(begin, begin + RATE_SECONDS) / RATE_SECONDS
            if size > 1:
                kill(min(last.members))
    return found


def _disturbed(make: Callable[[], Job], seed: int) -> tuple[int, dict[int, float]]:
    """The steps that count in two minutes, and for how long the run had which size."""
    with make() as job:
        job.launch(4)
        job.wait_for_steps(size=4, steps=WARM_STEPS)
        begin = time.monotonic()
        for number, event in enumerate(events(seed, int(SECONDS / INTERVAL) - 1), start=1):
            _sleep_until(begin + number * INTERVAL)
            match event:
                case Loss(choice):
                    _kill_one(job, choice)
                case Change(size):
                    job.resize(size)
        end = begin + SECONDS
        _sleep_until(end)
        job.look()
        return job.history.counted_steps(begin, end), job.history.seconds_by_size(begin, end)


def _kill_one(job: Job, choice: float) -> None:
    """Kill one of the newest round's members that still live; none, if all are on their way back."""
    living = job.processes()
    members = [pid for pid in sorted(job.look()[-1].members) if pid in living]
    if members:
        kill(members[int(choice * len(members))])


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0.0))
