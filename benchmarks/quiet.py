"""What edriver itself uses: memory and processor of driver and agents, and the time to the driver's first output."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.jobs import HarnessError
from benchmarks.processes import usage_of
from benchmarks.scenarios import WARM_STEPS
from benchmarks.under_edriver import EdriverJob

AGENT = "edriver.agent.main"
FIRST_LINE_TRIES = 5
WATCHED_SECONDS = 30.0


def quiet(system: Callable[[], EdriverJob]) -> dict[str, float]:
    """QUIET: a run of four workers on two hosts in which nothing happens; of agents, the one that takes the most."""
    with system() as job:
        job.launch(4)
        job.wait_for_steps(size=4, steps=WARM_STEPS)
        agents = [pid for pid, command in job.processes().items() if AGENT in command]
        before = {pid: usage_of(pid) for pid in (job.driver, *agents)}
        began = time.monotonic()
        time.sleep(WATCHED_SECONDS)
        watched = time.monotonic() - began
        after = {pid: usage_of(pid) for pid in before}
        if len(job.look()) != 1:
            raise HarnessError(f"the quiet run was not quiet: it has {len(job.look())} rounds", job.folder)
        job.finish()
    cores = {pid: (after[pid].seconds - before[pid].seconds) / watched for pid in before}
    return {
        "memory of the driver": after[job.driver].memory,
        "memory of an agent": max(after[pid].memory for pid in agents),
        "processor of the driver": cores[job.driver],
        "processor of an agent": max(cores[pid] for pid in agents),
        "first line": median(first_line(job.flags) for _ in range(FIRST_LINE_TRIES)),
    }


def first_line(flags: Sequence[str]) -> float:
    """Seconds from the command to the driver's first line of output."""
    command = [sys.executable, "-m", "edriver", "-np", "1", *flags, sys.executable, "-c", ""]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            assert process.stderr is not None
            process.stderr.readline()
            return time.monotonic() - began
        finally:
            process.terminate()
            process.communicate(timeout=30)
