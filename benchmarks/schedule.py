"""Random churn: what happens to a run, and when. Pure: a seed gives the same schedule every time.

A schedule is a sequence of bursts. Within a burst one event follows shortly after the other, during the recovery from
the first; between bursts the run may recover. Kills never hit the last worker that holds the state: which one is spared
is chosen when the members are known.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

HOSTS = ("localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3")
MOST_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Kill:
    """`kill -9` of workers, those that are still starting included.

    Attributes:
        delay: seconds after the event before.
        choices: for each victim, which of those there are, as a fraction of their number.
        rank_zero: whether rank 0 is the first victim.
    """

    delay: float
    choices: tuple[float, ...]
    rank_zero: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """Discovery finds other hosts.

    Attributes:
        delay: seconds after the event before.
        hosts: slots by host; the host of a spared worker stays as it is all the same.
    """

    delay: float
    hosts: dict[str, int]


Event = Kill | Resize


@dataclass(frozen=True, slots=True)
class Burst:
    """Events that do not wait for one another.

    Attributes:
        events: in order.
        whole: whether afterwards all slots have to be in one round again; else one finished step is enough.
    """

    events: tuple[Event, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is random about a run.

    Attributes:
        seed: what it was made from.
        hosts: slots by host at the start.
        min_np: the run's --min-np.
        samples: the dataset's length.
        step_seconds: the stand-in compute of a step.
        commit_steps: every which step is committed; 0: none ever is.
        bursts: what happens, in order.
    """

    seed: int
    hosts: dict[str, int]
    min_np: int
    samples: int
    step_seconds: float
    commit_steps: int
    bursts: tuple[Burst, ...]


def schedule_of(seed: int, bursts: int) -> Schedule:
    """Draw a schedule with so many bursts."""
    rng = random.Random(seed)
    min_np = rng.choice((1, 2))
    hosts = _hosts(rng)
    drawn = [_burst(rng, hosts) for _ in range(bursts)]
    return Schedule(
        seed=seed,
        hosts=hosts,
        min_np=min_np,
        samples=rng.randrange(150, 400),
        step_seconds=rng.uniform(0.002, 0.005),
        commit_steps=rng.choice((0, 0, 1, 10)),
        bursts=tuple(drawn),
    )


def _hosts(rng: random.Random) -> dict[str, int]:
    """One to three hosts with at least two slots in all; sometimes more than there may be workers."""
    while True:
        hosts = {host: rng.randint(1, 3) for host in rng.sample(HOSTS, rng.randint(1, 3))}
        if 2 <= sum(hosts.values()) <= MOST_WORKERS + 1:
            return hosts


def _burst(rng: random.Random, first_hosts: dict[str, int]) -> Burst:
    after = rng.uniform(0.0, 1.0)
    kind = rng.choice(("kill", "rank zero", "kill two", "kill and kill", "resize", "undone", "resize and kill"))
    if kind in ("kill", "rank zero"):
        return Burst((Kill(after, (rng.random(),), kind == "rank zero"),), whole=rng.random() < 0.5)
    if kind == "kill two":
        return Burst((Kill(after, (rng.random(), rng.random()), rng.random() < 0.5),), whole=rng.random() < 0.5)
    if kind == "kill and kill":  # the second and third during the recovery from the first
        kills = [Kill(after, (rng.random(),), rng.random() < 0.5)]
        kills += [Kill(rng.uniform(0.0, 0.2), (rng.random(),), rng.random() < 0.5) for _ in range(rng.randint(1, 2))]
        return Burst(tuple(kills), whole=rng.random() < 0.5)
    if kind == "resize":
        return Burst((Resize(after, _hosts(rng)),), whole=True)
    if kind == "undone":
        return Burst((Resize(after, _hosts(rng)), Resize(rng.uniform(0.0, 2.5), first_hosts)), whole=True)
    kill = Kill(rng.uniform(0.0, 1.5), (rng.random(),), rng.random() < 0.5)
    return Burst((kill, Resize(rng.uniform(0.0, 1.5), _hosts(rng)), kill), whole=True)
