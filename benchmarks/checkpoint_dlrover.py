"""DLROVER: checkpoints in memory beside DLRover's Flash Checkpoint, on one host.

python -m benchmarks.checkpoint_dlrover --dlrover PYTHON [--megabytes 500] [--kills 3]     prints JSON objects

PYTHON is a Python with dlrover[torch] installed. Two ranks, each with so many MB, save into memory every ten steps. In
turn under each system: how long a save holds up the loop on the slowest rank, once memory is warm; and after rank 1 is
killed, the time to the next step and the number of steps that are made again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.checkpoint_dlrover_job import EVERY_STEPS
from benchmarks.jobs import free_port
from benchmarks.processes import kill, marked, processes_of

JOB: Final = Path(__file__).with_name("checkpoint_dlrover_job.py")
COMMANDS: Final = {
    "edriver": "-m edriver -np 2 -H localhost:2 --reset-limit 1000",
    # It looks ten times a second whether its workers live; by default less often.
    "dlrover": "-m dlrover.trainer.torch.elastic_run --nproc_per_node=2 --max_restarts=1000 --monitor-interval=0.1",
}

MASTER: Final = "--node_num 1 --job_name benchmark --platform local"

WARM: Final = 60
"""Steps after which all buffers have been used."""

MEASURED: Final = 300
"""Steps before each kill: by then edriver's standby processes have been started again."""

BOUND: Final = 120.0


class Line(NamedTuple):
    """A step of a rank: when it ended, and how long its save took, in seconds."""

    at: float
    step: int
    save: float
    rank: int
    pid: int


def main() -> None:
    """Measure both, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_dlrover")
    parser.add_argument("--dlrover", required=True, help="a Python with dlrover[torch] installed")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    commands = {
        "edriver": [sys.executable, *COMMANDS["edriver"].split(), sys.executable],
        "dlrover": [options.dlrover, *COMMANDS["dlrover"].split()],
    }
    for system, command in commands.items():
        with _run(system, [*command, str(JOB), system], options.megabytes) as (folder, mark):
            pauses, lost = [], []
            _await(folder, lambda lines: len(lines) >= 2 * WARM)
            for _ in range(options.kills):
                _await_steps(folder, max(line.step for line in lines_of(folder)) + MEASURED)
                pause, again = _recovery(folder, mark)
                pauses.append(pause)
                lost.append(again)
            saves = saves_of(lines_of(folder))
        figures = {
            "system": system,
            "MB a rank": options.megabytes,
            "save in the loop s": round(median(saves), 4),
            "kill to next step s": round(median(pauses), 2),
            "steps lost": median(lost),
        }
        print(json.dumps(figures), flush=True)


def saves_of(lines: list[Line]) -> list[float]:
    """How long each save took on the slowest rank, in the processes that ran when all buffers had been used."""
    first = {(line.rank, line.pid): line.step for line in reversed(lines)}
    steps: dict[tuple[int, int], list[float]] = {}
    for line in lines:
        if line.step % EVERY_STEPS == 0 and line.step >= first[line.rank, line.pid] + WARM:
            steps.setdefault((line.step, round(line.at)), []).append(line.save)
    return [max(found) for found in steps.values()]


def lines_of(folder: Path) -> list[Line]:
    """What the ranks have written down, in order of time."""
    found = []
    for path in (folder / "log").iterdir():
        rank, pid = map(int, path.name.split("-"))
        for text in path.read_text().splitlines():
            parts = text.split(" ")
            if len(parts) == 3:
                found.append(Line(float(parts[0]), int(parts[1]), float(parts[2]), rank, pid))
    return sorted(found)


def _recovery(folder: Path, mark: str) -> tuple[float, int]:
    living = processes_of(mark)
    pid = next(line.pid for line in reversed(lines_of(folder)) if line.rank == 1 and line.pid in living)
    before = max(line.step for line in lines_of(folder))
    at = time.monotonic()
    kill(pid)
    known = {line.pid for line in lines_of(folder)}
    _await(folder, lambda lines: any(line.pid not in known and line.rank == 0 for line in lines))
    first = next(line for line in lines_of(folder) if line.pid not in known and line.rank == 0)
    return first.at - at, max(0, before - first.step + 1)


def _await_steps(folder: Path, step: int) -> None:
    _await(folder, lambda lines: max(line.step for line in lines) >= step)


def _await(folder: Path, there: Callable[[list[Line]], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not ((lines := lines_of(folder)) and there(lines)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {BOUND:g} s")
        time.sleep(0.1)


@contextmanager
def _run(system: str, command: list[str], megabytes: int) -> Iterator[tuple[Path, str]]:
    folder = Path(tempfile.mkdtemp(prefix="edriver-dlrover-"))
    (folder / "log").mkdir()
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    environ |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    master: list[str] = []
    if system == "dlrover":  # whose launcher (0.6.1) cannot start its master with torch 2.13
        port = free_port()
        environ["DLROVER_MASTER_ADDR"] = f"127.0.0.1:{port}"
        master = [command[0], *f"-m dlrover.python.master.main --port {port} {MASTER}".split()]
    with marked([*command, str(folder), "--megabytes", str(megabytes)], folder, environ, master) as mark:
        yield folder, mark


if __name__ == "__main__":
    main()
