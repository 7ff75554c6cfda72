"""The picture of what a driver costs at a size.

    python -m benchmarks.scale run --hosts 10 100 1000 > LINES
    python -m benchmarks.scale_picture LINES [FILE]

Dashed lines and open circles are no measurement: they are what 10,000 hosts would cost if each host beyond the largest
size cost as much as one between the two largest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

CALCULATED: Final = 10_000

PHASES: Final = {
    "form": "form the first round",
    "lose_host": "lose a host",
    "grow": "grow by a tenth",
    "drain": "drain a host",
    "lose_rack_by_lease": "lose a rack, by lease",
}
SHARES: Final = {"quiet": "in quiet", "watched": "watched by 50 clients"}
COLOURS: Final = ("#1f5fa8", "#b3261e", "#2e7d32", "#8e5ea2", "#e08214")


class Curve(NamedTuple):
    """What is drawn of a figure: its name, its value at each size, and that at CALCULATED hosts."""

    name: str
    values: list[float]
    calculated: float


def calculated(hosts: Sequence[int], values: Sequence[float]) -> float:
    """The value at CALCULATED hosts, on the line through the two largest sizes; at least that at the largest."""
    slope = (values[-1] - values[-2]) / (hosts[-1] - hosts[-2])
    return values[-1] + max(0.0, slope) * (CALCULATED - hosts[-1])


def curves(lines: Sequence[dict[str, Any]], phases: dict[str, str], figure: str) -> list[Curve]:
    """A curve for each phase.

    Args:
        lines: of the benchmark, of one size each, the smallest first.
        phases: their names in the lines, and in the picture.
        figure: the name of the figure in each.
    """
    hosts = [line["hosts"] for line in lines]
    found = []
    for key, name in phases.items():
        values = [line[key][figure] for line in lines]
        found.append(Curve(name, values, calculated(hosts, values)))
    return found


def draw(axes: Axes, hosts: Sequence[int], shown: Sequence[Curve], title: str) -> None:
    """Draw curves over the number of hosts."""
    for curve, colour in zip(shown, COLOURS, strict=False):
        axes.plot(hosts, curve.values, marker="o", markersize=4, color=colour, label=curve.name)
        ends = [curve.values[-1], curve.calculated]
        axes.plot([hosts[-1], CALCULATED], ends, linestyle="--", linewidth=1, color=colour)
        axes.plot([CALCULATED], [curve.calculated], marker="o", markersize=5, markerfacecolor="white", color=colour)
    axes.set(xscale="log", yscale="log", xlabel="hosts of 8 workers")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xticks([*hosts, CALCULATED], labels=[f"{size:,}" for size in (*hosts, CALCULATED)])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_picture")
    parser.add_argument("lines", type=Path)
    parser.add_argument("picture", type=Path, nargs="?", default=Path("docs/pictures/scale.png"))
    args = parser.parse_args()
    lines = [line for text in args.lines.read_text().splitlines() if "hosts" in (line := json.loads(text))]
    lines.sort(key=lambda line: line["hosts"])
    hosts = [line["hosts"] for line in lines]
    mpl.use("agg")
    figure, ((seconds, processor), (shares, memory)) = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    draw(seconds, hosts, curves(lines, PHASES, "s"), "until the last host has its assignment: seconds on the clock")
    draw(processor, hosts, curves(lines, PHASES, "driver_cpu_s"), "the same: seconds of the driver's processor time")
    draw(
        shares,
        hosts,
        curves(lines, SHARES, "driver_core"),
        "while nothing happens: part of a core",
    )
    draw(
        memory, hosts, curves(lines, {"lose_host": "after the loss of a host"}, "driver_mb"), "the driver's memory: MB"
    )
    figure.suptitle(
        f"A driver at a size. Dashed, and at {CALCULATED:,} hosts: calculated from the slope between {hosts[-2]:,} and "
        f"{hosts[-1]:,}",
        fontsize=11,
    )
    figure.savefig(args.picture, dpi=130)


if __name__ == "__main__":
    main()
