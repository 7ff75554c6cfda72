"""The figures of churn as a picture: what each system needs, and where edriver's time goes."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.figures import Figures, Key
from benchmarks.phases import PHASES

BARS = (
    ("K1", "downtime", "K1: kill -9\nof rank 2"),
    ("K0", "downtime", "K0: kill -9\nof rank 0"),
    ("UP", "longest pause", "UP: 2 to 4\nlongest pause"),
    ("DOWN", "longest pause", "DOWN: 4 to 2\nlongest pause"),
)
COLOURS = {"bare": "#9a9a9a", "edriver": "#1f77b4", "torchft": "#e8a33d", "torchrun": "#c0504d"}


def draw(figures: Figures, path: Path) -> None:
    """Draw the medians.

    Args:
        figures: what was measured; what is missing is left out.
        path: where to write; its suffix tells the format.
    """
    mpl.rcParams["svg.hashsalt"] = "edriver"  # the same figures give the same bytes
    whole = Figure(figsize=(9, 6.2), layout="constrained")
    above, below = whole.subplots(2, 1, height_ratios=(3, 1))
    _systems(above, figures)
    _phases(below, figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.savefig(path, dpi=130)


def _systems(axes: Axes, figures: Figures) -> None:
    width = 0.8 / len(COLOURS)
    for offset, (system, colour) in enumerate(COLOURS.items()):
        for place, (part, name, _) in enumerate(BARS):
            value = figures.median(Key(part, system, name))
            if value:
                at = place + (offset - (len(COLOURS) - 1) / 2) * width
                bar = axes.bar(at, value * 1000, width, color=colour)
                axes.bar_label(bar, fmt="%.0f", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds without a step")
    axes.set_xticks(range(len(BARS)), [label for *_, label in BARS])
    handles = [mpl.patches.Patch(color=colour, label=system) for system, colour in COLOURS.items()]
    axes.legend(handles=handles, fontsize=8, loc="upper left", ncols=len(COLOURS))
    axes.margins(y=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _phases(axes: Axes, figures: Figures) -> None:
    axes.set_title("edriver, K1: from the kill to the next finished step", fontsize=10)
    colours = mpl.colormaps["tab10"]
    left = 0.0
    for number, phase in enumerate(PHASES):
        value = figures.median(Key("K1", "edriver", f"phase: {phase}"))
        if value is not None:
            axes.barh(0, value * 1000, left=left, color=colours(number), label=f"{phase} {value * 1000:.0f}")
            left += value * 1000
    axes.set_yticks([])
    axes.set_xlabel("milliseconds")
    if left:
        axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.5))
    else:
        axes.text(0.5, 0.5, "this edriver writes no event log", transform=axes.transAxes, ha="center")
    axes.spines[["top", "right"]].set_visible(False)
