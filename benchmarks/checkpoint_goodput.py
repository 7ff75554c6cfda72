"""GOODPUT OF CHECKPOINTS: checkpoints in memory beside torchrun with checkpoints on disk, under kills at fixed times.

python -m benchmarks.checkpoint_goodput [--seconds 300] [--every 20]      prints a JSON object for each system

Both train the same four ranks, one after the other: edriver on two hosts (localhost and 127.0.0.2), with a checkpoint
in memory every ten steps; torchrun with torch.distributed.checkpoint's async_save to disk every 60 s. Every 20 s a rank
is killed, each in turn. Goodput is the time that the steps take which the run has in the end, at the pace of the first
15 s, before the first kill, over the time that has passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.processes import kill, marked, processes_of

JOB: Final = Path(__file__).with_name("checkpoint_goodput_job.py")
SIZE: Final = 4
UNDISTURBED: Final = 15.0
START_TIMEOUT: Final = 120.0
COMMANDS: Final = {
    "edriver": "-m edriver -np 4 -H localhost:2,127.0.0.2:2 --reset-limit 1000000 --blacklist-cooldown-range 0.1 0.1",
    # All in torchrun's favour: it looks ten times a second whether its workers live; by default once.
    "torchrun": "-m torch.distributed.run --standalone --nproc-per-node 4 --max-restarts 100000 --monitor-interval 0.1",
}


class Step(NamedTuple):
    """A step that rank 0 has made."""

    at: float
    step: int


class Found(NamedTuple):
    """What one system has reached.

    Attributes:
        goodput: useful time over all time.
        steps_lost: for each kill, steps that were made again.
        pauses: for each kill, seconds from it to the next step.
    """

    goodput: float
    steps_lost: list[int]
    pauses: list[float]


def main() -> None:
    """Measure both, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_goodput")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--only", choices=COMMANDS, nargs="+", default=list(COMMANDS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    for system in options.only:
        found = measured(system, options.seconds, options.every)
        figures = {
            "system": system,
            "goodput": round(found.goodput, 3),
            "kills": len(found.pauses),
            "steps lost a kill, median": median(found.steps_lost),
            "most": max(found.steps_lost),
            "kill to next step s, median": round(median(found.pauses), 2),
            "longest s": round(max(found.pauses), 2),
        }
        print(json.dumps(figures), flush=True)


def measured(system: str, seconds: float, every: float) -> Found:
    """Let a system train for so many seconds, with a kill at each so many.

    Raises:
        TimeoutError: it does not begin.
    """
    with _run(system) as (folder, mark):
        began = _await_step(folder)
        kills = []
        for number in range(1, int(seconds // every)):
            time.sleep(max(0.0, began + number * every - time.monotonic()))
            ranks = living_ranks(folder, mark)
            pid = ranks.get(number % SIZE)
            if pid is not None and kill(pid):  # else it is between two starts
                kills.append(time.monotonic())
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return judged(steps_of(folder), kills, began, began + seconds)


def judged(steps: list[Step], kills: list[float], began: float, end: float) -> Found:
    """What was reached. Pure.

    Args:
        steps: of rank 0, in order of time.
        kills: when ranks were killed.
        began: when the measurement began,
        end: and when it ended.
    """
    steps = [each for each in steps if began <= each.at <= end]
    first = [each for each in steps if each.at < began + UNDISTURBED]
    pace = (first[-1].at - first[0].at) / (first[-1].step - first[0].step)
    lost, pauses = [], []
    for at in kills:
        before = max(each.step for each in steps if each.at <= at)
        after = next((each for each in steps if each.at > at and each.step <= before), None)
        following = next((each for each in steps if each.at > at + pace and each.step > 0), None)
        lost.append(0 if after is None else before - after.step + 1)
        resumed = after or following
        pauses.append((resumed.at if resumed else end) - at)
    return Found((steps[-1].step - steps[0].step) * pace / (end - began), lost, pauses)


def steps_of(folder: Path) -> list[Step]:
    """What rank 0 has written down, in order of time."""
    found = []
    for path in (folder / "log").glob("0-*"):
        for line in path.read_text().splitlines():
            parts = line.split(" ")
            if len(parts) == 3 and parts[1] == "step":  # else it was killed while it wrote
                found.append(Step(float(parts[0]), int(parts[2])))
    return sorted(found)


def living_ranks(folder: Path, mark: str) -> dict[int, int]:
    """The process of each rank that trains."""
    living = processes_of(mark)
    places = (path.name.partition("-") for path in (folder / "log").iterdir())
    return {int(rank): int(pid) for rank, _, pid in places if int(pid) in living}


def _await_step(folder: Path) -> float:
    deadline = time.monotonic() + START_TIMEOUT
    while not (steps := steps_of(folder)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no step within {START_TIMEOUT:g} s")
        time.sleep(0.1)
    return steps[0].at


@contextmanager
def _run(system: str) -> Iterator[tuple[Path, str]]:
    """A run of a system: the folder in which it writes, and the mark of its processes."""
    folder = Path(tempfile.mkdtemp(prefix="edriver-goodput-"))
    (folder / "log").mkdir()
    (folder / "checkpoints").mkdir()
    if system == "torchrun":
        (folder / "checkpoints" / "begun").touch()
    environ = {
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # without it, restarts under torchrun hang on Gloo in torch 2.13
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    script = [sys.executable] if system == "edriver" else []
    command = [sys.executable, *COMMANDS[system].split(), *script, str(JOB), system, str(folder)]
    with marked(command, folder, environ) as mark:
        yield folder, mark


if __name__ == "__main__":
    main()
