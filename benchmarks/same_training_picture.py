"""The picture of the page on GlobalBatch: `python -m benchmarks.same_training_picture [FILE] [--steps 400]`.

A small GPT is trained twice on the text of examples/charlm, in steps of 48 samples: by 4 workers, undisturbed; and with
five kills and five resizes. Drawn is the loss of both over the samples, and by how much they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.jobs import end_well_on_sigterm
from benchmarks.same_training import end_well, job, lines_of
from examples.plot_rounds import BLUE, GREY, PALE, RED
from tests.process.running import Run, edriver
from tests.waiting import until

EVENTS: Sequence[tuple[str, int]] = (
    ("kill", 2), ("resize", 2), ("kill", 0), ("resize", 4), ("kill", 3),
    ("resize", 3), ("kill", 1), ("resize", 1), ("resize", 4), ("kill", 0),
)  # fmt: skip
"""What happens to the run, once it has all its workers again: a rank is killed, or their number is changed."""


def trained(steps: int, events: Sequence[tuple[str, int]]) -> tuple[list[dict[str, Any]], list[int]]:
    """What rank 0 has noted of each step, and at which number of samples things happened."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job(folder, "curve", 4, steps=steps) as run:
            happened, size = [], 4
            for number, (what, value) in enumerate(events, 1):
                happened.append(reached(run, folder, number * steps // (len(events) + 2), size))
                if what == "kill":
                    os.kill(run.pids()[value], signal.SIGKILL)
                    continue
                size = value
                answer = edriver("resize", str(size), "--run", run.id)
                if answer.returncode:
                    raise SystemExit(answer.stderr)
            end_well(run)
        by_step = {line["step"]: line for line in lines_of(folder / "curve")}  # of a step that was made twice the last
    assert sorted(by_step) == list(range(1, steps + 1))
    return [by_step[step] for step in sorted(by_step)], happened


def reached(run: Run, folder: Path, step: int, size: int) -> int:
    """Wait for a step, and for so many workers; returns how many samples have been trained on."""

    def samples() -> int | None:
        if run.ended:
            raise SystemExit(run.text)
        last = (lines_of(folder / "curve") or [{"step": 0, "workers": 0}])[-1]
        return int(last["samples"]) if last["step"] >= step and last["workers"] == size else None

    return until(samples, f"step {step} with {size} workers")


def draw(one: list[dict[str, Any]], happened: Sequence[int], other: list[dict[str, Any]], picture: Path) -> None:
    """Draw the disturbed run over the other, their difference, and how many workers it had."""
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (above, middle, below) = plt.subplots(
        3, 1, sharex=True, figsize=(9, 5.4), height_ratios=(4, 1.3, 1), layout="constrained"
    )
    samples = [line["samples"] for line in one]
    above.plot(
        samples, [line["loss"] for line in other], color=GREY, linewidth=4, alpha=0.6, label="4 workers, undisturbed"
    )
    above.plot(samples, [line["loss"] for line in one], color=BLUE, linewidth=1, label="five kills, five resizes")
    above.set_ylabel("loss of each step")
    above.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none", fontsize=9)
    differences = [abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(one, other, strict=True)]
    middle.semilogy(samples, [max(value, 1e-9) for value in differences], color=BLUE, linewidth=1)
    middle.set_ylabel("relative\ndifference")
    for at, (what, value) in zip(happened, EVENTS, strict=True):
        for axes in (above, middle):
            axes.axvline(at, color=RED, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        words = f"resize {value}" if what == "resize" else f"kill rank {value}"
        above.annotate(
            words, (at, 1.01), xycoords=("data", "axes fraction"), rotation=30, fontsize=8, color=RED, ha="left"
        )
    edges = [0, *samples]
    below.stairs([line["workers"] for line in one], edges, fill=True, color=PALE)
    below.stairs([line["workers"] for line in one], edges, color=BLUE, linewidth=1.4)
    below.set(xlabel="samples", ylabel="workers", xlim=(0, samples[-1]), yticks=[0, 2, 4])
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Train twice, and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_training_picture")
    parser.add_argument("picture", nargs="?", type=Path, default=Path("docs/pictures/same-training.png"))
    parser.add_argument("--steps", type=int, default=400)
    flags = parser.parse_args()
    end_well_on_sigterm()
    other, _ = trained(flags.steps, ())
    one, happened = trained(flags.steps, EVENTS)
    draw(one, happened, other, flags.picture)
    largest = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(one, other, strict=True))
    print(json.dumps({"steps": flags.steps, "largest relative difference of losses": largest}))


if __name__ == "__main__":
    main()
