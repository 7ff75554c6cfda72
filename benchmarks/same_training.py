"""SAME: what GlobalBatch costs and saves, and how alike runs of any size are: `python -m benchmarks.same_training`.

    python -m benchmarks.same_training [--quick] [--only quiet loss sizes]

`quiet`: seconds of the same steps by GlobalBatch, and with `bitwise=True`, over those of a loop written by hand with
no_sync, in turns within one run, with the interval in which the median lies; the same of processor time. `loss`: how
much longer a step takes in which a worker is lost than one of those that are left, if the others keep what they have
computed, and if they begin anew; a micro-batch sleeps in place of computing. `sizes`: how far parameters after 200
steps of Adam are from those of an undisturbed run of 4 workers. Prints JSON lines, one for each figure, with the load
of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.jobs import end_well_on_sigterm
from tests.process.running import Run, edriver, running
from tests.waiting import until

MICRO_BATCHES = 16
"""Of each of three workers in `loss`."""

END_BOUND = 1800.0
"""Longest that a run may take, in seconds."""

RESIZES = {15: 3, 30: 2, 50: 4, 65: 1, 85: 3, 100: 2, 120: 1, 140: 4, 160: 3, 180: 4}
"""Ten of them: in front of a step the number of workers."""


def main() -> None:
    """Measure and print."""
    parts = {"quiet": quiet, "loss": loss, "sizes": sizes}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_training")
    parser.add_argument("--quick", action="store_true", help="little of each: does the harness work?")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="only these")
    flags = parser.parse_args()
    end_well_on_sigterm()
    for part in flags.only:
        for line in parts[part](flags.quick):
            print(json.dumps({"part": part, **line, "load": round(os.getloadavg()[0], 1)}), flush=True)


@contextmanager
def job(folder: Path, part: str, workers: int, **arguments: object) -> Iterator[Run]:
    """A run of a part of benchmarks.same_training_job, on two hosts. Without an order it has no more workers."""
    flags = ["-np", str(workers), "--min-np", "1", "--max-np", str(workers), "-H", "127.0.0.1:2,127.0.0.2:2"]
    command = [sys.executable, "-m", "benchmarks.same_training_job", part, str(folder), json.dumps(arguments)]
    with running([*flags, *command], folder) as run:
        yield run


def end_well(run: Run) -> None:
    """Wait for the end; raises SystemExit with what it has printed if it ends badly."""
    if run.end(END_BOUND) != 0:
        raise SystemExit(run.text)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """What the job has noted there so far: whole lines."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def quiet(quick: bool) -> Iterator[dict[str, object]]:
    """For some numbers of workers and widths of the model: the ratios, medians over turns."""
    for workers in (2,) if quick else (2, 4):
        for width, steps in ((64, 4),) if quick else ((512, 8), (64, 60)):
            turns = 2 if quick else 100
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                arguments = {"width": width, "micro_batch": 32, "micro_batches": 16, "steps": steps, "turns": turns}
                with job(folder, "quiet", workers, **arguments) as run:
                    end_well(run)
                found = lines_of(folder / "turns")
            by_way = {
                way: [line for line in found if line["way"] == way] for way in ("by hand", "GlobalBatch", "bitwise")
            }
            hand = by_way["by hand"]
            line: dict[str, object] = {"workers": workers, "width": width, "steps of a turn": steps, "turns": turns}
            line["milliseconds of a step by hand"] = round(1e3 * median(one["seconds"] for one in hand) / steps, 2)
            for way in ("GlobalBatch", "bitwise"):
                for what, title in (("seconds", "time"), ("processor", "processor time")):
                    ratios = [one[what] / other[what] for one, other in zip(by_way[way], hand, strict=True)]
                    line[f"{way} / by hand, {title}"] = round(median(ratios), 4)
                    line[f"{way} / by hand, {title}, 95 %"] = confidence(ratios)
            yield line


def confidence(ratios: list[float]) -> list[float]:
    """Between what their median lies with 95 % probability: the bootstrap (Efron, Annals of Statistics 7, 1979).

    A turn takes up to a fifth more or less than the next one, so that the median of 20 may be 5 % off.
    """
    draws = random.Random(0)
    medians = sorted(median(draws.choices(ratios, k=len(ratios))) for _ in range(1000))
    return [round(medians[25], 4), round(medians[974], 4)]


def loss(quick: bool) -> Iterator[dict[str, object]]:
    """For a kill after some micro-batches of the lost worker: the seconds lost, kept and anew in turns, medians."""
    repeats, seconds = (1, 0.05) if quick else (3, 0.1)
    lost: dict[tuple[int, bool], list[float]] = defaultdict(list)
    steps_of_two, steps_of_three = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job(folder, "loss", 3, micro_batches=3 * MICRO_BATCHES, seconds=seconds) as run:
            for _ in range(repeats):
                for at in (8,) if quick else (2, 8, 14):
                    for anew in (False, True):
                        whole, cut, rest = lossy_step(folder, run, at, anew)
                        steps_of_three.append(whole)
                        steps_of_two.append(rest)
                        lost[at, anew].append(cut - rest)
            (folder / "end").touch()
            end_well(run)
    for (at, anew), all_lost in lost.items():
        yield {
            "kill in micro-batch": f"{at + 1} of {MICRO_BATCHES}",
            "others": "begin anew" if anew else "keep what they have",
            "seconds lost": round(median(all_lost), 3),
            "of each": [round(one, 3) for one in all_lost],
            "seconds of a micro-batch": seconds,
            "seconds of a step of 3 workers, of 2": [round(median(steps_of_three), 3), round(median(steps_of_two), 3)],
        }


def lossy_step(folder: Path, run: Run, at: int, anew: bool) -> tuple[float, float, float]:
    """Lose a worker; returns the seconds of the step before, of the step with the loss, and of the next one of two."""
    steps = folder / "steps"

    def spans(size: int, after: float) -> dict[int, float]:
        """The seconds of the steps that ended with so many workers and began after that time, as rank 0 has them."""
        begins: dict[int, float] = {}
        found: dict[int, float] = {}
        for line in lines_of(steps):
            if line["event"] == "begin" and line["at"] > after:
                begins.setdefault(line["step"], line["at"])
            elif line["event"] == "end" and line["size"] == size and line["rank"] == 0 and line["step"] in begins:
                found[line["step"]] = line["at"] - begins[line["step"]]
        return found

    def lives() -> None:
        if run.ended:
            raise SystemExit(run.text)

    def awaited(size: int, after: float, count: int) -> dict[int, float]:
        def enough() -> dict[int, float] | None:
            lives()
            found = spans(size, after)
            return found if len(found) >= count else None

        return until(enough, f"{count} steps of {size} workers")

    known = lines_of(steps)
    whole = awaited(3, known[-1]["at"] if known else 0.0, 2)  # the first one may have begun a round
    (folder / "closed").touch()
    if anew:
        (folder / "anew").touch()
    kills = len([line for line in lines_of(steps) if line["event"] == "kill"])
    (folder / "unfinished").write_text(json.dumps([2, at]))
    (folder / "unfinished").replace(folder / "order")

    def killed() -> dict[str, Any] | None:
        lives()
        found = [line for line in lines_of(steps) if line["event"] == "kill"]
        return found[-1] if len(found) > kills else None

    kill = until(killed, "the kill")
    (folder / "order").unlink()
    begin = min(line["at"] for line in lines_of(steps) if line["event"] == "begin" and line["step"] == kill["step"])
    two = awaited(2, begin - 1e-6, 3)  # the step with the loss, and two others
    (folder / "anew").unlink(missing_ok=True)
    (folder / "closed").unlink()
    return whole[max(whole)], two[kill["step"]], two[kill["step"] + 2]


def sizes(quick: bool) -> Iterator[dict[str, object]]:
    """How far parameters are from those of 4 workers: undisturbed runs of other sizes, and one with ten resizes."""
    steps = 20 if quick else 200
    resizes = {10: 2} if quick else RESIZES
    for bitwise in (False, True):
        expected = trained(4, steps, {}, bitwise)
        for workers in (2,) if quick else (3, 2, 1):
            yield {"workers": [workers], **difference(trained(workers, steps, {}, bitwise), expected, steps, bitwise)}
        found = trained(4, steps, resizes, bitwise)
        yield {"workers": [4, *resizes.values()], **difference(found, expected, steps, bitwise)}


def trained(workers: int, steps: int, resizes: dict[int, int], bitwise: bool) -> list[torch.Tensor]:
    """The parameters that a run ends with."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job(folder, "sizes", workers, at=resizes, steps=steps, bitwise=bitwise) as run:
            for step, size in resizes.items():
                run.line(f"step {step} wants {size} workers")
                answer = edriver("resize", str(size), "--run", run.id)
                if answer.returncode:
                    raise SystemExit(answer.stderr)
            end_well(run)
        found: list[torch.Tensor] = torch.load(folder / "parameters")
        return found


def difference(found: list[torch.Tensor], expected: list[torch.Tensor], steps: int, bitwise: bool) -> dict[str, object]:
    """The largest difference, relative to the parameter, and to the largest one of its tensor."""
    pairs = list(zip(found, expected, strict=True))
    return {
        "bitwise": bitwise,
        "steps": steps,
        "equal bits": all(torch.equal(one, other) for one, other in pairs),
        "difference / parameter": max(((a - b).abs() / b.abs().clamp(min=1e-30)).max().item() for a, b in pairs),
        "difference / largest of its tensor": max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs),
        "norm of differences / norm": (
            torch.cat([(a - b).flatten() for a, b in pairs]).norm() / torch.cat([b.flatten() for b in expected]).norm()
        ).item(),
    }


if __name__ == "__main__":
    main()
