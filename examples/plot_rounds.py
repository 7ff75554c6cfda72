"""Draw a training log: loss over time, what was done to the run, and how many workers each round had.

python plot_rounds.py LOG PICTURE [--title TITLE]

The log has a JSON object a line, each with its `time` in seconds: of a step (`loss`, `workers`), of a round's start
(`event` "round", `workers`), or of anything else that happened (`event`, a few words for the picture).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

SMOOTHING = 0.2
"""Weight of the newest step in the loss's moving average."""

LABEL_ROWS = 6
"""Labels of neighbouring events stand in different rows, the earliest on top, so that no line crosses a label."""

BLUE, PALE, GREY, RED = "#1f5fa8", "#c3d3e8", "#8a95a3", "#b3261e"


class Log(NamedTuple):
    """What a log says; times are seconds since its first step.

    Attributes:
        steps: (time, loss, workers) of each step.
        rounds: (time, workers) of each round's start.
        events: (time, words) of everything else.
        end: time of the last record.
    """

    steps: list[tuple[float, float, int]]
    rounds: list[tuple[float, int]]
    events: list[tuple[float, str]]
    end: float


def parse_log(text: str) -> Log:
    """Read a log. Lines that are not whole are skipped: a worker may be killed while it writes one.

    Raises:
        ValueError: there is no step in it.
    """
    records: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    first = min((record["time"] for record in records if "loss" in record), default=None)
    if first is None:
        raise ValueError("the log has no step in it: was --log given to the training script?")
    steps, rounds, events = [], [], []
    for record in sorted(records, key=lambda record: float(record["time"])):
        time = record["time"] - first
        if "loss" in record:
            steps.append((time, record["loss"], record["workers"]))
        elif record["event"] == "round":
            rounds.append((time, record["workers"]))
        else:
            events.append((time, record["event"]))
    return Log(steps, rounds, events, end=max(record["time"] for record in records) - first)


def smoothed(values: list[float]) -> list[float]:
    """The exponential moving average, started at the first value."""
    average, averages = values[0], []
    for value in values:
        average += SMOOTHING * (value - average)
        averages.append(average)
    return averages


def draw(log: Log, title: str, picture: Path) -> None:
    """Draw the log into a PNG file."""
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (loss_axes, worker_axes) = plt.subplots(
        2, 1, sharex=True, figsize=(9, 5), height_ratios=(4, 1), layout="constrained"
    )
    draw_loss(loss_axes, log)
    draw_workers(worker_axes, log)
    for axes in (loss_axes, worker_axes):
        for time, _ in log.rounds:
            axes.axvline(time, color=GREY, linewidth=0.8, zorder=0)
        for time, _ in log.events:
            axes.axvline(time, color=RED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    label_events(loss_axes, log.events)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.savefig(picture, dpi=110)


def draw_loss(axes: Axes, log: Log) -> None:
    """Each step's loss, faint, and its moving average."""
    times = [time for time, _, _ in log.steps]
    losses = [loss for _, loss, _ in log.steps]
    axes.plot(times, losses, color=PALE, linewidth=1, label="loss of each step (rank 0)")
    axes.plot(times, smoothed(losses), color=BLUE, linewidth=1.8, label="moving average")
    axes.plot([], [], color=GREY, linewidth=0.8, label="a round begins")
    if min(losses) > 0 and max(losses) > 20 * min(losses):
        axes.set_yscale("log")
    axes.set_ylabel("loss")
    axes.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none", fontsize=9)


def draw_workers(axes: Axes, log: Log) -> None:
    """The size of the round, as stairs."""
    starts = [time for time, _ in log.rounds]
    sizes = [workers for _, workers in log.rounds]
    axes.stairs(sizes, [*starts, log.end], fill=True, color=PALE)
    axes.stairs(sizes, [*starts, log.end], color=BLUE, linewidth=1.4)
    axes.set_ylabel("workers")
    axes.set_xlabel("seconds since the first step")
    axes.set_ylim(0, max(sizes) + 0.6)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlim(min(starts[0], 0), log.end)


def label_events(axes: Axes, events: list[tuple[float, str]]) -> None:
    """The events' words above the plot, each beside the end of its line."""
    rows = min(len(events), LABEL_ROWS)
    for number, (time, words) in enumerate(events):
        height = 1.02 + 0.06 * (rows - 1 - number % rows)
        place = axes.get_xaxis_transform()  # x in seconds, y in heights of the plot
        axes.plot([time, time], [1, height + 0.04], color=RED, linewidth=1, transform=place, clip_on=False)
        axes.text(time, height, f" {words}", color=RED, fontsize=9, transform=place)


def main() -> int:
    """Draw the log that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="Loss over time")
    options = parser.parse_args()
    try:
        log = parse_log(options.log.read_text())
    except (OSError, ValueError) as error:
        print(f"{options.log}: {error}", file=sys.stderr)
        return 1
    draw(log, options.title, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
