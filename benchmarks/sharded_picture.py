"""The picture of the page on sharded models: `python -m benchmarks.sharded_picture [FILE] [--steps 600]`.

examples/charlm/train_hsdp.py is trained twice, in replicas of two workers: with two replicas, undisturbed; and with
one, to which another is added, after which a worker is killed, and later rank 0. Drawn is the loss of both over the
steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from examples.plot_rounds import BLUE, GREY, PALE, RED, label_events, smoothed
from tests.process.running import ROOT, Hosts, Run, running

SCRIPT = ROOT / "examples/charlm/train_hsdp.py"
END_BOUND = 1200.0
"""Longest that a run may take, in seconds."""

Life = Callable[[Run, Hosts, Path], None]


def disturbed(run: Run, hosts: Hosts, log: Path) -> None:
    """A replica is added; then a worker is killed, and another one."""
    run.line("step 20 loss")
    hosts.are("localhost:2", "127.0.0.2:2")
    happened(log, "a replica is added")
    for rank in (3, 0):
        begin = len(run.lines)
        run.line(r"rank 0 of 4 is process")
        run.line(r"step \d+ loss .* \(4 workers\)", after=begin)
        victim = members(run)[rank]
        begin = len(run.lines)
        os.kill(victim, signal.SIGKILL)
        happened(log, f"kill -9 rank {rank}")
        run.line(r"rank 0 of 4 is process", after=begin)


def quiet(run: Run, hosts: Hosts, log: Path) -> None:
    """Nothing happens."""


def members(run: Run) -> dict[int, int]:
    """The process of each rank, as the scripts have printed it last."""
    printed = (line.partition("rank ")[2].split() for line in run.lines if " is process " in line)
    return {int(words[0]): int(words[-1]) for words in printed}


def happened(log: Path, words: str) -> None:
    """Note what was done to the run."""
    with log.open("a") as file:
        file.write(json.dumps({"time": time.time(), "event": words}) + "\n")


def trained(folder: Path, name: str, workers: int, life: Life, steps: int) -> list[dict[str, object]]:
    """The records of a run that begins with so many workers."""
    log = folder / f"{name}.jsonl"
    hosts = Hosts(folder, *["localhost:2", "127.0.0.2:2"][: workers // 2])
    flags = ["-np", str(workers), "--min-np", "2", "--max-np", "4", "--replica-size", "2"]
    command = [sys.executable, str(SCRIPT), "--batch-size", "4", "--steps", str(steps), "--log", str(log)]
    with running([*flags, "--host-discovery-script", str(hosts.script), *command], folder) as run:
        run.line(f"rank 0 of {workers} is process")
        life(run, hosts, log)
        if run.end(END_BOUND) != 0:
            raise SystemExit(run.text)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return sorted(records, key=lambda record: float(record["time"]))


def draw(one: list[dict[str, object]], other: list[dict[str, object]], picture: Path) -> None:
    """Draw the disturbed run over the other, and how many workers it had."""
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (axes, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 5), height_ratios=(4, 1), layout="constrained")
    steps, losses = curve(other)
    axes.plot(steps, smoothed(losses), color=GREY, linewidth=1.4, label="undisturbed, 2 replicas of 2")
    steps, losses = curve(one)
    axes.plot(steps, losses, color=PALE, linewidth=1, zorder=0)
    axes.plot(steps, smoothed(losses), color=BLUE, linewidth=1.8, label="with kills, and a replica that joins")
    step, starts, sizes, events = 0, [], [], []
    for record in one:
        step = int(str(record.get("step", step)))
        if record.get("event") == "round":
            starts.append(step)
            sizes.append(int(str(record["workers"])))
        elif "event" in record:
            events.append((float(step), str(record["event"])))
    for at, _ in events:
        axes.axvline(at, color=RED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    label_events(axes, events)
    below.stairs(sizes, [*starts, steps[-1]], fill=True, color=PALE)
    below.stairs(sizes, [*starts, steps[-1]], color=BLUE, linewidth=1.4)
    below.set(xlabel="steps", ylabel="workers", xlim=(0, steps[-1]), yticks=[0, 2, 4])
    axes.set_ylabel("loss")
    axes.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none", fontsize=9)
    figure.savefig(picture, dpi=110)


def curve(records: list[dict[str, object]]) -> tuple[list[int], list[float]]:
    """The steps, and the loss of each."""
    found = [record for record in records if "loss" in record]
    return [int(str(record["step"])) for record in found], [float(str(record["loss"])) for record in found]


def main() -> None:
    """Train twice, and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_picture")
    parser.add_argument("picture", nargs="?", type=Path, default=Path("docs/pictures/sharded.png"))
    parser.add_argument("--steps", type=int, default=600)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one = trained(Path(folder), "disturbed", 2, disturbed, flags.steps)
        other = trained(Path(folder), "undisturbed", 4, quiet, flags.steps)
        draw(one, other, flags.picture)


if __name__ == "__main__":
    main()
