"""MEMORY: what a checkpoint in memory costs a training loop that waits, as for a GPU; and how long a restart takes.

python -m benchmarks.checkpoint_memory [--megabytes 1000] [--kills 3]      prints JSON objects

Two ranks on two hosts (localhost and 127.0.0.2), each with a state of so many MB. A save is compared with one memcpy of
the same bytes into warm memory, by both ranks at once; the step rate while copies are made behind it, and while it is
written to disk, with that while neither is done. Then a rank is killed: the time from that to the next step, with a
checkpoint in memory each ten steps, and without any; and an agent, with its host's memory: the other host goes on
alone. Last, a rank of four that train 25 million parameters with FSDP2 and Adam, two on each host, without a pause.
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
from typing import IO, Final, NamedTuple

from benchmarks.processes import MARK, kill, kill_all, parent_of

JOB: Final = Path(__file__).with_name("checkpoint_memory_job.py")
STEPS: Final = 300
"""Steps between two kills: standbys are ready by then."""

FSDP_STEPS: Final = 57
"""The same where a step takes half a second; seven more than the last save."""


class Recovery(NamedTuple):
    """What a loss has cost.

    Attributes:
        seconds: from the kill to the next step.
        steps_lost: the steps that are made again.
    """

    seconds: float
    steps_lost: int


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_memory")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    for what in ("measure", "disk"):
        with _run(what, options.megabytes) as lines:
            print(next(line.partition("figures ")[2] for line in lines if "figures {" in line).strip(), flush=True)
    megabytes = options.megabytes // 10
    rank = _median(recoveries("saves", megabytes, options.kills))
    plain = _median(recoveries("plain", megabytes, options.kills))
    host = _median(recoveries("saves", megabytes, options.kills, hosts=True))
    figures = {
        "MB a rank": megabytes,
        "kill of a rank to next step s": rank,
        "the same without checkpoints s": plain,
        "more s": rank - plain,
        "kill of an agent to next step s": host,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)
    found = recoveries("fsdp-saves", 0, options.kills, slots=2, steps=FSDP_STEPS)
    saving = _median(found)
    without = _median(recoveries("fsdp-plain", 0, options.kills, slots=2, steps=FSDP_STEPS))
    lost = recoveries("fsdp-saves", 0, options.kills, hosts=True, slots=2, steps=FSDP_STEPS)
    figures = {
        "FSDP2 of four ranks: kill of a rank to next step s": saving,
        "the same without checkpoints s": without,
        "more s": saving - without,
        "steps lost, most": max(each.steps_lost for each in found),
        "kill of an agent to next step of two ranks s": _median(lost),
        "steps lost then, most": max(each.steps_lost for each in lost),
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def recoveries(
    what: str, megabytes: int, kills: int, *, hosts: bool = False, slots: int = 1, steps: int = STEPS
) -> list[Recovery]:
    """What kills of the second host's first rank cost until the next step of rank 0.

    Args:
        what: whether the script saves.
        megabytes: of each rank.
        kills: how many.
        hosts: whether that rank's agent is killed, with which its host and all that this holds is lost.
        slots: of each host.
        steps: of rank 0, between two kills.
    """
    found: list[Recovery] = []
    with _run(what, megabytes, slots) as lines:
        killed, pids, made, last = 0.0, dict[int, int](), 0, 0
        for line in lines:
            if not (match := re.search(r"rank (\d) pid (\d+) step (\d+)$", line)):
                continue
            rank, pid, step = map(int, match.groups())
            if rank == 0 and pids.get(0) != pid:
                if killed:
                    found.append(Recovery(time.monotonic() - killed, last + 1 - step))
                    if len(found) == kills:
                        return found
                killed, made, pids = 0.0, 0, {}
            pids[rank] = pid
            if rank == 0:
                made, last = made + 1, step
            if made >= steps and not killed and slots in pids:
                killed = time.monotonic()
                kill(parent_of(pids[slots]) if hosts else pids[slots])
    raise RuntimeError("the run has ended")


def _median(found: list[Recovery]) -> float:
    return median(each.seconds for each in found)


@contextmanager
def _run(what: str, megabytes: int, slots: int = 1) -> Iterator[IO[str]]:
    """What a run prints."""
    folder, mark = Path(tempfile.mkdtemp(prefix="edriver-memory-")), uuid.uuid4().hex
    command = [sys.executable, "-m", "edriver", "-np", str(2 * slots), "--min-np", "1"]
    command += ["-H", f"localhost:{slots},127.0.0.2:{slots}"]
    command += ["--mode", "restart", "--reset-limit", "100", "--blacklist-cooldown-range", "0.1", "0.1"]
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
