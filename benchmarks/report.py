"""The figures as tables and as a page, in Markdown: medians, least and most, and what became of the goals."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from benchmarks.figures import Figures, Key, unit_of
from benchmarks.goals import GOALS, judge
from benchmarks.phases import PHASES

SYSTEMS = (
    *("edriver", "restart mode", "bare", "DDP", "torchft", "torchrun", "no journal", "no standbys"),
    *("edriver on Ray", "Ray Train"),
)
EXPLANATION = Path(__file__).with_name("explanation.md")


@dataclass(slots=True)
class Results:
    """Everything that was measured, and when and how.

    Attributes:
        command: what was run.
        date: on which day.
        load: how many processes wanted a core before anything was measured (1-minute load average).
        repeats: runs of each trial, but of those of which one is enough.
        figures: what was measured.
        failures: trials that came to nothing, in sentences.
        load_after: as load, at the end.
    """

    command: str
    date: str
    load: float
    repeats: int
    figures: Figures = field(default_factory=Figures)
    failures: list[str] = field(default_factory=list)
    load_after: float = 0.0


def tables(figures: Figures) -> str:
    """All tables, without a word around them."""
    return "\n".join(table for table in (goals_table(figures), figures_table(figures), phases_table(figures)) if table)


def goals_table(figures: Figures) -> str:
    """What must be reached, of the parts that were measured."""
    measured = {key.part for key in figures}
    rows = []
    for goal in GOALS:
        if goal.of.part in measured:
            found = judge(goal, figures)
            value = "not measured" if found.value is None else goal.unit(found.value)
            rows.append((goal.what, value, goal.bound, "yes" if found.connected else "**no**"))
    return _markdown(("what", "measured", "goal", "met"), rows)


def figures_table(figures: Figures) -> str:
    """Every figure, the systems side by side."""
    systems = [system for system in SYSTEMS if any(key.system == system for key in figures)]
    names = dict.fromkeys((key.part, key.name) for key in figures if not key.name.startswith("phase: "))
    parts = list(dict.fromkeys(part for part, _ in names))
    rows = [
        (part, name, *(_spread(name, figures.values(Key(part, system, name))) for system in systems))
        for part, name in sorted(names, key=lambda row: parts.index(row[0]))
    ]
    return _markdown(("", "figure", *systems), rows)


def phases_table(figures: Figures) -> str:
    """Where the time of a recovery goes; empty without an event log."""
    rows = []
    for phase in PHASES:
        columns = [_spread("", figures.values(Key(part, "edriver", f"phase: {phase}"))) for part in ("K1", "K0")]
        if any(columns):
            rows.append((phase, *columns))
    return _markdown(("phase", "K1", "K0"), rows) if rows else ""


def _spread(name: str, values: Sequence[float]) -> str:
    """The median and, of several values, the least and the most."""
    if not values:
        return ""
    unit = unit_of(name)
    low, high = unit(min(values)), unit(max(values))
    middle = unit(median(values))
    return middle if low == high else f"{middle} ({low.removesuffix(unit.word).strip()} to {high})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def machine() -> str:
    """What the figures were taken on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = platform.release().partition("-")[0]
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {kernel} {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}, grpcio {version('grpcio')}, "
        f"torchft {_version_of('torchft')}"
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent: pip install -e '.[bench]'"


def page(results: Results, picture: str) -> str:
    """The whole page.

    Args:
        results: what was measured.
        picture: where the picture is, as seen from the page; empty: there is none.
    """
    return "".join(_page(results, picture))


def _page(results: Results, picture: str) -> Iterator[str]:
    yield "# What edriver reaches\n\n"
    yield "Written by the harness itself; run it again rather than edit this page.\n\n"
    yield f"- command: `{results.command}`\n- machine: {machine()}\n- date: {results.date}\n"
    yield f"- load average before and after it: {results.load:.1f}, {results.load_after:.1f}\n"
    yield f"- repeats: {results.repeats}; the cells give the median (least to most)\n\n"
    yield f"## Goals\n\n{goals_table(results.figures)}\n"
    if picture:
        yield f"![recovery and resizing by system, and the phases of a recovery]({picture})\n\n"
    yield f"## Figures\n\n{figures_table(results.figures)}\n"
    if phases := phases_table(results.figures):
        yield f"## Where the time goes, from the kill to the first step\n\n{phases}\n"
    if results.failures:
        yield "## Trials that came to nothing\n\nThey are not in the tables.\n\n"
        yield "".join(f"- {failure}\n" for failure in results.failures)
        yield "\n"
    yield EXPLANATION.read_text()
