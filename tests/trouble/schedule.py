"""Random trouble: what happens to a run on several hosts, and when. Pure: a seed gives the same schedule every time.

A schedule is one burst: faults that do not wait for recovery from earlier ones. One member and its host are spared,
since one worker has to hold the state; which one it is, is chosen when the members are known.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class StopDriver:
    """SIGSTOP to the driver, and SIGCONT later: Ctrl-Z, a suspended laptop, a virtual machine that moves.

    Attributes:
        delay: seconds after the event before.
        seconds: until it is continued.
    """

    delay: float
    seconds: float


@dataclass(frozen=True, slots=True)
class KillDriver:
    """`kill -9` of the driver, and `edriver resume` later.

    Attributes:
        delay: seconds after the event before.
        seconds: until it is resumed.
    """

    delay: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StopAll:
    """SIGSTOP to all workers, the spared one too, and SIGCONT later.

    Attributes:
        delay: seconds after the event before.
        seconds: until they are continued.
    """

    delay: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LongCall:
    """A call in the script that computes in C and holds the interpreter.

    Attributes:
        delay: seconds after the event before.
        choice: which worker makes it, as a fraction of their number; None: all of them do.
        seconds: how long it takes, about.
    """

    delay: float
    choice: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Fork:
    """A child that the script forks, and that ends at once by `sys.exit`.

    Attributes:
        delay: seconds after the event before.
        choice: which worker's, as a fraction of their number.
    """

    delay: float
    choice: float


@dataclass(frozen=True, slots=True)
class KillGuard:
    """`kill -9` of a guard: the driver's, or an agent's.

    Attributes:
        delay: seconds after the event before.
        choice: which of those there are, as a fraction of their number.
    """

    delay: float
    choice: float


@dataclass(frozen=True, slots=True)
class Flood:
    """Output of a worker, as fast as it can print.

    Attributes:
        delay: seconds after the event before.
        choice: which worker, as a fraction of their number.
        lines: how many.
    """

    delay: float
    choice: float
    lines: int


Harmless = StopDriver | KillDriver | StopAll | LongCall | Fork | KillGuard | Flood
"""What a run must bear as if nothing had happened: the same round goes on, in the same processes."""

Event = Kill | Stop | Cut | Drain | Resize | Harmless


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
        harmless: whether nothing of that may disturb the run.
    """

    seed: int
    hosts: dict[str, int]
    samples: int
    commit_steps: int
    spared: float
    events: tuple[Event, ...]
    harmless: bool = False


def schedule_of(seed: int, hard: bool = False, drivers: bool = False) -> Schedule:
    """Draw a schedule.

    Args:
        seed: what it is made from.
        hard: whether there is also what a run must bear as if nothing had happened; half of the schedules then have
            nothing else.
        drivers: whether the driver is killed up to three times; half of the schedules then have nothing else.
    """
    rng = random.Random(seed)
    hosts = _hosts(rng)
    schedule = Schedule(
        seed=seed,
        hosts=hosts,
        samples=rng.randrange(150, 400),
        commit_steps=rng.choice((0, 0, 1, 10)),
        spared=rng.random(),
        events=tuple(_event(rng) for _ in range(rng.randint(1, 4))),
    )
    if drivers:
        kills = [_driver_kill(rng) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            return replace(schedule, events=tuple(kills), harmless=True)
        return replace(schedule, events=tuple(_shuffled(rng, [*schedule.events, *kills])))
    if not hard:
        return schedule
    if rng.random() < 0.5:
        return replace(schedule, events=_harmless_burst(rng), harmless=True)
    # Beside kills and cuts, so that one lands in the other.
    return replace(schedule, events=tuple(_shuffled(rng, [*schedule.events, *_harmless_burst(rng)])))


def _driver_kill(rng: random.Random) -> KillDriver:
    delay = rng.choice((rng.uniform(0.0, 0.2), rng.uniform(0.0, 2.0)))
    return KillDriver(delay, rng.choice((0.0, rng.uniform(0.0, 1.0), rng.uniform(1.0, 8.0))))


def _harmless_burst(rng: random.Random) -> tuple[Event, ...]:
    """Up to three of them, of which one at most keeps workers from answering: those times would add up."""
    burst: list[Event] = []
    for _ in range(rng.randint(1, 3)):
        event = _harmless(rng, silent=not any(isinstance(other, StopAll | LongCall) for other in burst))
        burst.append(event)
    return tuple(burst)


def _harmless(rng: random.Random, silent: bool) -> Harmless:
    delay, choice = rng.choice((rng.uniform(0.0, 0.2), rng.uniform(0.0, 2.0))), rng.random()
    kinds = ["stop driver", "fork", "fork", "kill guard", "flood"] + ["stop all", "long call"] * (2 * silent)
    match rng.choice(kinds):
        case "stop driver":
            return StopDriver(
                delay, rng.choice((rng.uniform(0.5, 3.0), rng.uniform(6.0, 10.0), rng.uniform(15.0, 20.0)))
            )
        case "stop all":
            seconds = rng.choice((rng.uniform(0.5, 3.0), rng.uniform(4.5, 7.0), rng.uniform(10.0, 12.0)))
            return StopAll(delay, seconds)
        case "long call":
            seconds = rng.choice((rng.uniform(1.0, 4.0), rng.uniform(5.0, 10.0), rng.uniform(15.0, 20.0)))
            return LongCall(delay, rng.choice((None, choice)), seconds)
        case "fork":
            return Fork(delay, choice)
        case "kill guard":
            return KillGuard(delay, choice)
        case _:
            return Flood(delay, choice, rng.choice((2_000, 50_000, 500_000)))


def _shuffled(rng: random.Random, events: list[Event]) -> list[Event]:
    rng.shuffle(events)
    return events


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
