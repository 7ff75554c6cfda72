"""The figures as a table and as a page: medians, least and most, and the ratio of the medians."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median

from benchmarks.quiet import Share
from benchmarks.scenarios import SCENARIOS, Figures

MILLIONS = 1e6


@dataclass(slots=True)
class Results:
    """Everything that was measured.

    Attributes:
        load: how many processes wanted a core before anything was measured (1-minute load average).
        runs: figures by scenario and system ("edriver", "torchrun").
        failures: runs that came to nothing, in sentences.
        shares: what driver and agents took in the quiet run.
        quiet_seconds: how long it was watched.
        first_lines: seconds to the driver's first line, by try.
    """

    load: float
    runs: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    quiet_seconds: float = 0.0
    first_lines: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of every scenario.

    Attributes:
        title: its name in the table.
        of: takes it from a run's figures; None where the scenario has none.
        unit: what a value is multiplied by, and the word behind it.
        goals: by scenario, the most that edriver's median may be.
    """

    title: str
    of: Callable[[Figures], float | None]
    unit: tuple[float, str] = (1, "")
    goals: dict[str, float] = field(default_factory=dict)


NOTHING = {"K1": 0.0, "K0": 0.0, "UP": 0.0, "DOWN": 0.0}
COLUMNS = (
    Column("downtime", lambda f: f.downtime, (1000, "ms"), {"K1": 0.3, "K0": 0.3}),
    Column("longest pause", lambda f: f.pause, (1000, "ms"), {"UP": 0.25, "DOWN": 0.25}),
    Column("adoption time", lambda f: f.adoption, (1000, "ms")),
    Column("steps lost", lambda f: f.steps_lost, goals={"K1": 0.0, "K0": 0.0, "DOWN": 0.0}),
    Column("samples lost", lambda f: f.samples_lost, goals=NOTHING),
    Column("samples repeated", lambda f: f.samples_repeated, goals=NOTHING),
)

RATIO_GOAL = 12.0
"""How many times shorter than torchrun's the downtime has to be."""

MEMORY_GOAL, CORES_GOAL, FIRST_LINE_GOAL = 80 * MILLIONS, 0.02, 0.5


def table(results: Results) -> str:
    """The table of churn, in Markdown."""
    head = ("", "figure", "edriver", "torchrun", "torchrun / edriver", "goal for edriver", "met")
    rows = [row for scenario in SCENARIOS for column in COLUMNS if (row := _row(results, scenario.name, column))]
    return _markdown(head, rows)


def _row(results: Results, scenario: str, column: Column) -> tuple[str, ...] | None:
    ours, theirs = (_values(results, scenario, system, column) for system in ("edriver", "torchrun"))
    if not ours and not theirs:
        return None
    ratio = median(theirs) / median(ours) if ours and theirs and median(ours) > 0 else None
    goal, met = _judged(scenario, column, ours, ratio)
    return (
        scenario,
        column.title,
        _spread(ours, column.unit),
        _spread(theirs, column.unit),
        f"{ratio:.1f}" if ratio is not None else "",
        goal,
        met,
    )


def _values(results: Results, scenario: str, system: str, column: Column) -> list[float]:
    found = (column.of(figures) for figures in results.runs.get((scenario, system), []))
    return [value for value in found if value is not None]


def _judged(scenario: str, column: Column, ours: Sequence[float], ratio: float | None) -> tuple[str, str]:
    goal = column.goals.get(scenario)
    if goal is None:
        return "", ""
    factor, unit = column.unit
    text = f"at most {goal * factor:g} {unit}".strip()
    met = bool(ours) and median(ours) <= goal
    if column.title == "downtime":
        text += f", {RATIO_GOAL:g} times shorter"
        met = met and ratio is not None and ratio >= RATIO_GOAL
    return text, "yes" if met else "**no**"


def _spread(values: Sequence[float], unit: tuple[float, str]) -> str:
    if not values:
        return "none"
    factor, word = unit
    low, middle, high = (f"{value * factor:.0f}" for value in (min(values), median(values), max(values)))
    return f"{middle} {word} ({low} to {high})".replace("  ", " ")


def own_table(results: Results) -> str:
    """What driver and agents take, in Markdown."""
    head = ("figure", "measured", "goal", "met")
    rows = []
    for share in results.shares:
        memory, cores = f"{share.memory / MILLIONS:.0f} MB", f"{share.cores * 100:.2f} % of a core"
        rows.append((f"{share.role}: memory", memory, "under 80 MB", _yes(share.memory < MEMORY_GOAL)))
        rows.append((f"{share.role}: processor", cores, "under 2 % of a core", _yes(share.cores < CORES_GOAL)))
    if results.first_lines:
        met = _yes(median(results.first_lines) <= FIRST_LINE_GOAL)
        rows.append(("driver: first line of output", _spread(results.first_lines, (1000, "ms")), "within 500 ms", met))
    return _markdown(head, rows)


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def machine() -> str:
    """What the figures were taken on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = platform.release().partition("-")[0]
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {kernel} {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}, grpcio {version('grpcio')}"
    )


def page(results: Results, command: str, date: str) -> str:
    """The whole page, in Markdown."""
    return "".join(_page(results, command, date))


def _page(results: Results, command: str, date: str) -> Iterator[str]:
    repeats = max(map(len, results.runs.values()), default=0)
    yield "# Churn: edriver and torchrun side by side\n\n"
    yield "Written by the harness itself; run it again rather than edit this page.\n\n"
    yield f"- command: `{command}`\n- machine: {machine()}\n- date: {date}\n"
    yield f"- load average before it: {results.load:.1f}\n"
    yield f"- repeats: {repeats} of each; the cells give the median (least to most)\n\n"
    yield f"{table(results)}\n"
    if results.failures:
        yield "Runs that came to nothing, and are not in the table:\n\n"
        yield "".join(f"- {failure}\n" for failure in results.failures)
        yield "\n"
    if results.shares or results.first_lines:
        yield "## What edriver itself takes\n\n"
        yield f"A run of 4 workers on 2 hosts in which nothing happens, watched for {results.quiet_seconds:.0f} s;\n"
        yield f"the first line of output is the median of {len(results.first_lines)} tries.\n\n"
        yield f"{own_table(results)}\n"
    yield EXPLANATION


EXPLANATION = """\
## What is run

Both systems train the same thing, taking turns: DistributedDataParallel on Gloo over loopback, a multilayer perceptron
with 0.4 million parameters under Adam, 8 samples a worker and step out of 2,048, and a sleep of 20 ms in each step as
stand-in compute. edriver commits each step. torchrun writes a checkpoint every 10 steps and goes on from it, within the
epoch. Each run is left alone for 45 steps, half-way between two checkpoints; then it happens:

- K1, K0: `kill -9` of one worker, rank 2 or rank 0. edriver has two hosts of two slots; torchrun one agent of four
  workers, its best case: no rendezvous with other agents.
- UP, DOWN: a host of two slots is added to, or taken from, what the discovery script prints; with torchrun
  (`--nnodes 1:2 --nproc-per-node 2`) a second agent is started, or ends by SIGTERM.

torchrun's settings are in its favour where the default is slow: `last_call_timeout=1` (default 30),
`keep_alive_interval=1` (default 5). It runs with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, since without it its
restarts hang on Gloo in torch 2.13. Both run with `OMP_NUM_THREADS=1`.

## What is measured

Every worker writes down when it begins and when it finishes each step, with the round, its rank, the step's number and
the samples; all figures come from these records.

- **downtime**: from the kill to the moment at which the first step of a later round is finished by all its members.
  edriver goes on with the three that are left, torchrun with four new ones.
- **longest pause**: the longest time between two steps that rank 0 finished in a row, from the event to the end: the
  later joining of a replacement is in it.
- **adoption time**: from the event to the first step finished by all of as many workers as there are to be. After a
  kill that is four again. It contains the boot of new processes, during which edriver's others train on; in DOWN, two
  polls of discovery a second apart.
- **steps lost**: steps that any worker had finished and that were trained again.
- **samples lost, repeated**: samples that an epoch of the surviving history never saw, or saw twice; what the last
  step of an epoch repeats so that all workers have equally many is not counted. The surviving history of a round goes
  as far as the step from which the next round went on.
"""
