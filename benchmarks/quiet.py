"""What edriver itself takes: memory and processor of driver and agents, and how soon the driver speaks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from benchmarks.jobs import EdriverJob, HarnessError, Workload
from benchmarks.processes import Usage, usage_of
from benchmarks.scenarios import GUEST, HOME, WARM_STEPS

AGENT = "edriver.worker.agent_main"
FIRST_LINE_TRIES = 5


@dataclass(frozen=True, slots=True)
class Share:
    """What a process takes.

    Attributes:
        role: driver or agent.
        memory: resident bytes at the end.
        cores: processor time over the time watched, in cores.
    """

    role: str
    memory: int
    cores: float


def quiet_run(seconds: float) -> list[Share]:
    """Watch a run of four workers on two hosts in which nothing happens."""
    with EdriverJob(Workload()) as job:
        job.start({HOME: 2, GUEST: 2}, np=4)
        job.wait_for_steps(size=4, steps=WARM_STEPS)
        roles = {job.driver: "driver"} | {pid: "agent" for pid, command in job.processes().items() if AGENT in command}
        before = {pid: usage_of(pid) for pid in roles}
        began = time.monotonic()
        time.sleep(seconds)
        watched = time.monotonic() - began
        after = {pid: usage_of(pid) for pid in roles}
        if len(job.look()) != 1:
            raise HarnessError(f"the quiet run was not quiet: it has {len(job.look())} rounds", job.folder)
        job.finish()
    return [Share(role, *_taken(before[pid], after[pid], watched)) for pid, role in roles.items()]


def _taken(before: Usage, after: Usage, watched: float) -> tuple[int, float]:
    return after.memory, (after.seconds - before.seconds) / watched


def first_line() -> float:
    """Seconds from the command to the driver's first line of output."""
    command = [sys.executable, "-m", "edriver", "-np", "1", sys.executable, "-c", ""]
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
