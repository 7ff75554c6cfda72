"""What benchmarks of CHAOS share: a run whose driver may be killed and resumed, and schedules of what disturbs it.

A schedule is drawn from its seed. Some follow one another in one run; after one at which something was wrong, and after
one that has ended its run, the next one has a new run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.processes import MARK, kill_all

SCHEDULES_PER_RUN: Final = 10
SHOWN: Final = 6000
"""Characters of the drivers' output that are shown if something was wrong."""


class ChaosRun:
    """A run whose ranks write down what they do, as lines of JSON in files of their own.

    Args:
        folder: for all that it writes.

    Attributes:
        mark: of its processes, see processes.py.
        folder: as given.
        log: the folder with what its ranks write down.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.log = folder / "log"
        self.log.mkdir()
        self._environ = {**os.environ, MARK: self.mark, "XDG_STATE_HOME": str(folder / "state")}
        self._driver = self.started(*self.command())

    def command(self) -> Sequence[str]:
        """The arguments of edriver that begin the run."""
        raise NotImplementedError

    def wait_for_training(self, after: float) -> bool:
        """Wait until all ranks of one round have trained after a moment; False: the run has ended.

        Raises:
            TimeoutError: they have not.
        """
        raise NotImplementedError

    def started(self, *words: str) -> subprocess.Popen[bytes]:
        """Start edriver with these arguments, as a process of this run."""
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "edriver", *words],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether its driver has ended."""
        return self._driver.poll() is not None

    @property
    def records(self) -> Path:
        """The folder of its records."""
        (events,) = (self.folder / "state" / "edriver").glob("*/events.jsonl")
        return events.parent

    def lines(self) -> list[dict[str, Any]]:
        """What ranks have written down, in order of time."""
        found = []
        for path in self.log.iterdir():
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # it was killed while it wrote
                    found.append(json.loads(line))
        return sorted(found, key=lambda line: line["at"])

    def replace_driver(self) -> float:
        """Kill the driver, and have another one resume the run; returns when it was killed."""
        self._driver.kill()
        self._driver.wait()
        at = time.monotonic()
        self._driver = self.started("resume", str(self.records))
        return at

    def end(self) -> None:
        """End all of it."""
        kill_all(self.mark)
        self._driver.wait()

    def output(self) -> str:
        """What its drivers have printed."""
        return (self.folder / "output").read_text(errors="replace")


Run = TypeVar("Run", bound=ChaosRun)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a schedule.

    Attributes:
        done: what was done and found, for people.
        faults: what must not be.
        over: why the run has ended although nothing is wrong; empty: it goes on.
    """

    done: str
    faults: Sequence[str] = ()
    over: str = ""


@contextmanager
def in_a_folder(start: Callable[[Path], Run]) -> Iterator[Run]:
    """A run in a folder that is removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="edriver-chaos-"))
    run = start(folder)
    try:
        yield run
    finally:
        run.end()
        shutil.rmtree(folder)


def _terminated(*_: object) -> None:
    """What was started is ended, too, whatever comes meanwhile."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def chaos(program: str, start: Callable[[Path], Run], schedule: Callable[[Run, int], Verdict]) -> dict[str, int]:
    """Do as many schedules as the command line asks for, and print a line for each.

    Args:
        program: the benchmark's name.
        start: begins a run in a folder.
        schedule: does the schedule of a seed, on a run that trains.

    Returns:
        the numbers of schedules, of those at which something was wrong, and of those that have ended their run though
        nothing was; and the seconds that all took.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    seeds = iter(range(options.seed, options.seed + options.schedules))
    seed = next(seeds, None)
    faulty, ended, began = 0, 0, time.monotonic()
    while seed is not None:
        with in_a_folder(start) as run:
            run.wait_for_training(0)
            for _ in range(SCHEDULES_PER_RUN):
                found = schedule(run, seed)
                print(f"seed {seed}: {found.done}: {'; '.join(found.faults[:3]) or found.over or 'ok'}", flush=True)
                faulty += bool(found.faults)
                ended += bool(found.over and not found.faults)
                if found.faults:
                    print(run.output()[-SHOWN:], flush=True)
                seed = next(seeds, None)
                if seed is None or found.faults or found.over:
                    break
    seconds = round(time.monotonic() - began)
    return {"schedules": options.schedules, "faulty": faulty, "ended": ended, "seconds": seconds}
