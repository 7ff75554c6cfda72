"""MEMORY: what a checkpoint in memory costs a training loop that waits, as for a GPU; and how long a restart takes.

python -m benchmarks.checkpoint_memory [--megabytes 1000] [--kills 3]      prints JSON objects

Two ranks on two hosts (localhost and 127.0.0.2), each with a state of so many MB. A save is compared with a copy of the
same bytes into warm memory, by both ranks at once; the step rate while copies are made behind it with that while none
are. Then a rank is killed: the time from that to the next step, with a checkpoint in memory each ten steps, and without
any.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import IO, Final

from benchmarks.processes import MARK, kill, kill_all

JOB: Final = Path(__file__).with_name("checkpoint_memory_job.py")
STEPS: Final = 300
"""Steps between two kills: standbys are ready by then."""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_memory")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    with _run("measure", options.megabytes) as lines:
        print(next(line.partition("figures ")[2] for line in lines if "figures {" in line), flush=True)
    saves, plain = (recoveries(what, options.megabytes // 10, options.kills) for what in ("saves", "plain"))
    figures = {
        "MB a rank": options.megabytes // 10,
        "kill to next step s": median(saves),
        "the same without checkpoints s": median(plain),
        "more s": median(saves) - median(plain),
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def recoveries(what: str, megabytes: int, kills: int) -> list[float]:
    """Seconds from kills of rank 1 to the next step."""
    found: list[float] = []
    with _run(what, megabytes) as lines:
        killed, pids, steps = 0.0, dict[int, int](), 0
        for line in lines:
            if not (step := re.search(r"rank (\d) pid (\d+) step \d+$", line)):
                continue
            rank, pid = int(step[1]), int(step[2])
            if rank == 0 and pids.get(0) != pid and killed:
                found.append(time.monotonic() - killed)
                if len(found) == kills:
                    return found
                killed, steps = 0.0, 0
            pids[rank] = pid
            steps += rank == 0
            if steps == STEPS and not killed:
                killed = time.monotonic()
                kill(pids[1])
    raise RuntimeError("the run has ended")


@contextmanager
def _run(what: str, megabytes: int) -> Iterator[IO[str]]:
    """What a run prints."""
    folder, mark = Path(tempfile.mkdtemp(prefix="edriver-memory-")), uuid.uuid4().hex
    command = [sys.executable, "-m", "edriver", "-np", "2", "-H", "localhost:1,127.0.0.2:1", "--reset-limit", "100"]
    command += [sys.executable, str(JOB), what, str(megabytes), str(folder / "checkpoints")]
    environ = {**os.environ, MARK: mark, "XDG_STATE_HOME": str(folder / "state")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        kill_all(mark)
        process.wait()
        process.stdout.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
