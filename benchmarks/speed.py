"""SPEED: how fast workers train under edriver, beside a bare process group.

Both run at the same time, and all processes of one are stopped while those of the other have the machine, in turns of
half a second: what else the machine does then falls on both alike, which on a virtual one is a tenth of its speed from
one second to the next. A turn is shorter than any lease of edriver's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.jobs import ROOT, HarnessError, free_port
from benchmarks.processes import MARK, kill_all, processes_of
from edriver.agent.workers.worker_environment import MALLOC_DEFAULTS

BOUND = 180.0
SETTLING = 0.1
"""Seconds at the beginning of a turn that do not count."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What trains, under both.

    Attributes:
        module: the script, which takes the file for its steps as the first argument,
        arguments: and these after it.
        workers: how many workers there are.
        flags: more flags of edriver's.
        warm_steps: how many steps come before the first turn.
        turns: how many turns each of the two has.
        turn_seconds: how long a turn is: several steps.
    """

    module: str = "benchmarks.speed_job"
    arguments: Sequence[str] = ()
    workers: int = 2
    flags: Sequence[str] = ()
    warm_steps: int = 30
    turns: int = 50
    turn_seconds: float = 0.5


class SpeedRun:
    """One system's run of a subject.

    Args:
        subject: what trains.
        system: "edriver" or "bare".
        folder: where its steps and its output go.
    """

    def __init__(self, subject: Subject, system: str, folder: Path) -> None:
        self._subject = subject
        self.mark = f"{folder.name}-{system}"
        self._steps = folder / system
        self._steps.touch()
        with (folder / f"{system}.txt").open("wb") as output:
            self._processes = [
                subprocess.Popen(
                    command,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(ROOT),
                        "XDG_STATE_HOME": str(folder),
                        MARK: self.mark,
                        **settings,
                    },
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # as edriver's workers: the scheduler shares by session
                )
                for command, settings in _commands(subject, system, self._steps)
            ]

    @property
    def lives(self) -> bool:
        """Whether none of what was started has ended."""
        return all(process.poll() is None for process in self._processes)

    def steps(self) -> array[float]:
        """When each step was finished, so far."""
        found = array("d")
        data = self._steps.read_bytes()
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in processes_of(self.mark):
            os.kill(pid, number)

    def turn(self) -> float:
        """Let it have a turn; returns its steps a second in it."""
        self.signal(signal.SIGCONT)
        begin = time.monotonic()
        time.sleep(self._subject.turn_seconds)
        end = time.monotonic()
        self.signal(signal.SIGSTOP)
        return rate(self.steps(), begin + SETTLING, end)

    def end(self) -> None:
        """Kill what there is."""
        kill_all(self.mark)
        for process in self._processes:
            process.wait()


def speed(subject: Subject = Subject()) -> dict[str, float]:
    """Let both train, in turns.

    Args:
        subject: what they train.

    Raises:
        HarnessError: one ended, or did not begin in time.
    """
    folder = Path(tempfile.mkdtemp(prefix="speed-"))
    runs = [SpeedRun(subject, system, folder) for system in ("edriver", "bare")]
    try:
        _await_warmth(runs, subject.warm_steps, folder)
        runs[1].signal(signal.SIGSTOP)
        runs[0].signal(signal.SIGSTOP)
        pairs = []
        for turn in range(subject.turns):
            order = runs if turn % 2 == 0 else runs[::-1]
            found = {run: run.turn() for run in order}
            pairs.append((found[runs[0]], found[runs[1]]))
    finally:
        for run in runs:
            run.end()
    shutil.rmtree(folder)
    return {
        "steps a second": median(ours for ours, _ in pairs),
        "steps a second, bare": median(bare for _, bare in pairs),
        "ratio to bare": median(ours / bare for ours, bare in pairs),
    }


def rate(steps: Sequence[float], begin: float, end: float) -> float:
    """Steps a second between the first and the last step that were finished in that time. Pure.

    Raises:
        ValueError: there are fewer than two.
    """
    inside = [at for at in steps if begin <= at < end]
    if len(inside) < 2:
        raise ValueError(f"{len(inside)} steps in {end - begin:.1f} s tell no rate")
    return (len(inside) - 1) / (inside[-1] - inside[0])


def _await_warmth(runs: Sequence[SpeedRun], steps: int, folder: Path) -> None:
    deadline = time.monotonic() + BOUND
    while any(len(run.steps()) < steps for run in runs):
        if not all(run.lives for run in runs):
            raise HarnessError("a run of SPEED ended before its time", folder)
        if time.monotonic() > deadline:
            raise HarnessError(f"SPEED does not train within {BOUND:g} s", folder)
        time.sleep(0.1)


def _commands(subject: Subject, system: str, steps: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What to start, and with what in its environment. The bare ones have what edriver's agent gives to workers."""
    job = [sys.executable, "-m", subject.module, str(steps), *subject.arguments]
    if system == "edriver":
        return [([sys.executable, "-m", "edriver", "-np", str(subject.workers), *subject.flags, *job], {})]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(subject.workers)}
    group |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **MALLOC_DEFAULTS}
    return [(job, {**group, "RANK": str(rank)}) for rank in range(subject.workers)]
