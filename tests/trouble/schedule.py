"""Random trouble: what happens to a run on several hosts, and when. Pure: a seed gives the same schedule every time.

A schedule is one burst: trouble that does not wait for what earlier trouble has set off. One member, the spared one,
and its host are left alone, since somebody has to hold the state; which it is shows when it is known who there is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

HOSTS = ("host1", "host2", "host3")
MOST_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Kill:
    """`kill -9` of a worker.

    Attributes:
        delay: seconds after the event before.
        choice: which of those there are, as a fraction of their number.
    """

    delay: float
    choice: float


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGSTOP to a worker or an agent, and SIGCONT later.

    Attributes:
        delay: seconds after the event before.
        choice: which of those there are, as a fraction of their number.
        seconds: until it is continued.
        agent: whether it is a host's agent; else a worker.
    """

    delay: float
    choice: float
    seconds: float
    agent: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """A host's cable is pulled, and put back later.

    Attributes:
        delay: seconds after the event before.
        choice: which host, as a fraction of their number.
        seconds: until it is put back.
    """

    delay: float
    choice: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Drain:
    """`edriver drain` of a host, and undrain at the end of the burst.

    Attributes:
        delay: seconds after the event before.
        choice: which host, as a fraction of their number.
    """

    delay: float
    choice: float


@dataclass(frozen=True, slots=True)
class Resize:
    """Discovery finds other hosts.

    Attributes:
        delay: seconds after the event before.
        hosts: slots by host; the spared member's host stays all the same.
    """

    delay: float
    hosts: dict[str, int]


Event = Kill | Stop | Cut | Drain | Resize


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is random about a run.

    Attributes:
        seed: what it was made from.
        hosts: slots by host at the start.
        samples: the dataset's length.
        commit_steps: every which step is committed; 0: none ever is.
        spared: which member is left alone, as a fraction of their number.
        events: what happens, in order.
    """

    seed: int
    hosts: dict[str, int]
    samples: int
    commit_steps: int
    spared: float
    events: tuple[Event, ...]


def schedule_of(seed: int) -> Schedule:
    """Draw a schedule."""
    rng = random.Random(seed)
    hosts = _hosts(rng)
    return Schedule(
        seed=seed,
        hosts=hosts,
        samples=rng.randrange(150, 400),
        commit_steps=rng.choice((0, 0, 1, 10)),
        spared=rng.random(),
        events=tuple(_event(rng) for _ in range(rng.randint(1, 4))),
    )


def _hosts(rng: random.Random) -> dict[str, int]:
    """Two or three hosts, with two to five slots in all."""
    while True:
        hosts = {host: rng.randint(1, 2) for host in rng.sample(HOSTS, rng.randint(2, 3))}
        if 2 <= sum(hosts.values()) <= MOST_WORKERS + 1:
            return hosts


def _event(rng: random.Random) -> Event:
    delay, choice = rng.choice((rng.uniform(0.0, 0.2), rng.uniform(0.0, 2.0))), rng.random()
    # Short of the lease of 5 s, about as long, and beyond it.
    seconds = rng.choice((rng.uniform(0.1, 3.0), rng.uniform(4.5, 6.5), rng.uniform(7.0, 12.0)))
    match rng.choice(("kill", "kill", "stop", "stop agent", "cut", "cut", "drain", "resize")):
        case "kill":
            return Kill(delay, choice)
        case "stop":
            return Stop(delay, choice, seconds, agent=False)
        case "stop agent":
            return Stop(delay, choice, seconds, agent=True)
        case "cut":
            return Cut(delay, choice, seconds)
        case "drain":
            return Drain(delay, choice)
        case _:
            return Resize(delay, _hosts(rng))
