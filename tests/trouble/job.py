"""The churn workload with a script that makes trouble of its own: what is in `orders/PID` it does at its next step.

An order is a line: `fork`, `call SECONDS`, `flood LINES`, `stall SECONDS`, `fail`.
"""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import churn_job
from benchmarks.workload import options

CALIBRATION = 1_000_000


def obey(orders: Path) -> None:
    """Do what is ordered, if anything is; each order once."""
    try:
        lines = orders.read_text().splitlines()
    except FileNotFoundError:
        return
    orders.unlink()
    for line in lines:
        verb, _, argument = line.partition(" ")
        _VERBS[verb](argument)


def _fork(_: str) -> None:
    """Fork a child that ends by sys.exit, as code unaware of forks may. The next call reaps it."""
    while _reap():
        pass
    if os.fork() == 0:
        sys.exit(0)


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return False


def _call(seconds: str) -> None:
    """One call that computes in C, about so long, and never lets another thread have the interpreter."""
    began = time.monotonic()
    sum(range(CALIBRATION))
    sum(range(int(CALIBRATION * float(seconds) / (time.monotonic() - began))))


def _flood(lines: str) -> None:
    line = "x" * 99
    for number in range(int(lines)):
        print(f"{number} {line}")
    sys.stdout.flush()


def _stall(seconds: str) -> None:
    time.sleep(float(seconds))


def _fail(_: str) -> None:
    raise ValueError("it was ordered to fail")


_VERBS: dict[str, Callable[[str], None]] = {
    "fork": _fork,
    "call": _call,
    "flood": _flood,
    "stall": _stall,
    "fail": _fail,
}


def main() -> None:
    """The whole script."""
    start_quickly()
    orders = options().folder / "orders" / str(os.getpid())
    step = vars(churn_job)["train_step"]

    def troubled_step(*args: Any) -> None:
        obey(orders)
        step(*args)

    vars(churn_job)["train_step"] = troubled_step
    churn_job.main()
    end_quickly()


if __name__ == "__main__":
    main()
