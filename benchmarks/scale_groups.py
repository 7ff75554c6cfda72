"""Real groups of many workers on one machine: what a kill and a growth cost as the group grows.

python -m benchmarks.scale groups --workers 4 8 16 32

The workers are on two hosts, and a sleep stands for what a step computes, so that they do not wait for processors in
training. In a recovery they do, where a machine has fewer processors than workers. Prints a JSON object for each size,
with the phases of the recovery, and how many times longer it takes than in the smallest group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from benchmarks.jobs import Workload
from benchmarks.scenarios import killed, resized
from benchmarks.under_edriver import GUEST, HOME, EdriverJob

KILL, GROWTH = "kill to the next step", "growth from half: longest pause"
WORKLOAD: Final = Workload(hidden=64, step_seconds=0.25)


class ManyWorkersJob(EdriverJob):
    """A run of any even number of workers, half of them on each of two hosts."""

    def launch(self, size: int) -> None:
        """Start the driver with so many, and no room for more than there are after a growth."""
        self.start(_hosts(size), np=size, min_np=2, max_np=2 * size)

    def resize(self, size: int) -> None:
        """Let discovery find so many slots."""
        self.set_hosts(_hosts(size))


def _hosts(size: int) -> dict[str, int]:
    return {HOME: size // 2, GUEST: size // 2}


def measured(sizes: Iterable[int]) -> Iterator[dict[str, float]]:
    """Measure each size.

    Args:
        sizes: numbers of workers, each a multiple of four.

    Yields:
        The figures of a size, in seconds, with how many times longer than at the first size each of two takes.
    """
    first: dict[str, float] = {}
    for size in sizes:
        make = partial(ManyWorkersJob, WORKLOAD)
        loss, growth = killed(make, rank=2, size=size), resized(make, size // 2, size)
        figures = {
            "workers": size,
            KILL: loss["downtime"],
            **{name: seconds for name, seconds in loss.items() if name.startswith("phase: ")},
            GROWTH: growth["longest pause"],
            "growth from half: to the first step of all": growth["adoption"],
            "steps lost": loss["steps lost"] + growth["steps lost"],
        }
        first = first or figures
        ratios = {
            f"{name}, over {first['workers']:.0f} workers": figures[name] / first[name] for name in (KILL, GROWTH)
        }
        yield {name: round(value, 3) for name, value in {**figures, **ratios}.items()}
