"""What benchmarks of CHAOS share: a run whose driver may be killed and resumed, and schedules of what disturbs it.

A `DisturbedRun` is one in elastic mode that is disturbed in every way.

A schedule is drawn from its seed. Some follow one another in one run; after one at which something was wrong, and after
one that has ended its run, the next one has a new run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from benchmarks.processes import MARK, kill, kill_all, processes_of

SCHEDULES_PER_RUN: Final = 10
SHOWN: Final = 6000
"""Characters of the drivers' output that are shown if something was wrong."""

SIZE: Final = 4
HOSTS: Final = ("localhost:2", "127.0.0.2:2")
SPARE: Final = "127.0.0.3:2"
LONGEST_PAUSE: Final = 2.0
"""Seconds between two disturbances, at most."""

LONGEST_STOP: Final = 8.0
"""Seconds for which a worker is stopped, at most: longer and shorter than its lease."""

NOTES: Final = 3
"""What each rank notes before a schedule is over."""

BOUND: Final = 240.0
KINDS: Final = {"kill": 6, "stop": 3, "drain": 2, "hosts": 2, "resize": 2, "driver": 1}
"""How a DisturbedRun is disturbed, and how often in each way beside the others."""


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


class DisturbedRun(ChaosRun):
    """A run of four workers on two hosts, in elastic mode, which may be smaller for a while.

    Its ranks write down lines whose `what` is "begins", in each round, and "notes", of a step that they have made.
    """

    JOB: ClassVar[str]
    """The script, a file beside this one, which gets the folder to write to."""

    FLAGS: ClassVar[Sequence[str]]
    """More arguments of edriver."""

    SIZES: ClassVar[Sequence[int]]
    """To which it can be resized."""

    HOLDERS: ClassVar[int]
    """How many workers hold the whole state between them."""

    def __init__(self, folder: Path) -> None:
        self._taken: list[tuple[str, ...]] = []
        super().__init__(folder)

    @property
    def _name(self) -> str:
        return f"chaos-{self.mark[:8]}"

    def command(self) -> Sequence[str]:
        """See ChaosRun."""
        self._hosts(*HOSTS)
        script = self.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(self.folder / 'hosts'))}\n")
        script.chmod(0o755)
        flags = ["-np", str(SIZE), "--min-np", str(min(self.SIZES)), "--max-np", str(SIZE), *self.FLAGS]
        flags += ["--host-discovery-script", str(script), "--reset-limit", "1000000", "--run", self._name]
        flags += ["--blacklist-cooldown-range", "0.1", "0.1", "--start-timeout", "200"]
        return [*flags, sys.executable, str(Path(__file__).with_name(self.JOB)), str(self.log)]

    def _ask(self, *words: str) -> bool:
        """Ask its driver for something; returns whether that has agreed."""
        return self.started(*words, "--run", self._name).wait(timeout=BOUND) == 0

    def _hosts(self, *lines: str) -> None:
        new = self.folder / "hosts.new"
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.folder / "hosts")

    def steps_lost(self) -> int:
        """Steps that rounds have lost, by the run's records."""
        lines = (self.records / "events.jsonl").read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        rounds = {json.dumps(event["round"]["round_id"]): event["round"] for event in events if "round" in event}
        return sum(int(found["steps_lost"]) for found in rounds.values())

    def wait_for_training(self, after: float) -> bool:
        """Wait until four ranks of one round have noted steps after a moment; False: the run has ended.

        Raises:
            TimeoutError: they have not.
        """
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            found = [line for line in self.lines() if line["what"] == "notes" and line["at"] > after]
            recent = found[-SIZE * NOTES :]
            whole = all(sum(line["rank"] == rank for line in recent) >= NOTES for rank in range(SIZE))
            if whole and {line["size"] for line in recent} == {SIZE}:
                return True
            if self.ended:
                return False
            time.sleep(0.2)
        raise TimeoutError(f"four workers do not train within {BOUND:g} s")

    def disturb(self, draw: random.Random) -> list[str]:
        """One to four disturbances after random pauses, and give back what was taken; returns what was done."""
        done = []
        for _ in range(draw.randint(1, 4)):
            time.sleep(draw.choice([0, draw.uniform(0, LONGEST_PAUSE)]))
            done.append(self._disturb(draw.choices([*KINDS], [*KINDS.values()])[0], draw))
        self._give_back()
        return done

    def _disturb(self, kind: str, draw: random.Random) -> str:
        """Do one of KINDS; returns what was done, for people."""
        began: dict[int, int] = {line["pid"]: line["rank"] for line in self.lines() if line["what"] == "begins"}
        workers = sorted(began.keys() & processes_of(self.mark).keys())
        host = draw.choice(("localhost", "127.0.0.2"))
        match kind:
            case "kill" if workers:
                pid = draw.choice(workers)
                kill(pid)
                return f"kill rank {began[pid]}"
            case "stop" if workers:
                pid, seconds = draw.choice(workers), draw.uniform(0.05, LONGEST_STOP)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                timer = threading.Timer(seconds, _go_on, [pid])
                timer.daemon = True
                timer.start()
                return f"stop rank {began[pid]} for {seconds:.1f} s"
            case "drain":
                what = draw.choice((host, f"{host}:{draw.randrange(2)}"))
                self._ask("drain", what)
                self._taken.append(("undrain", what))
                return f"drain {what}"
            case "hosts":
                lines = draw.choice((HOSTS[:1], HOSTS[1:], (HOSTS[0], SPARE), (*HOSTS, SPARE)))
                self._hosts(*lines)
                return f"hosts {','.join(lines)}"
            case "resize":
                size = draw.choice(self.SIZES)
                self._ask("resize", str(size))
                self._taken.append(("resize", str(SIZE)))
                return f"resize {size}"
            case "driver":
                self.replace_driver()
                return "kill the driver"
        return "nothing"

    def _give_back(self) -> None:
        """All that was taken."""
        self._hosts(*HOSTS)
        deadline = time.monotonic() + BOUND
        for words in self._taken:
            while not self._ask(*words) and not self.ended and time.monotonic() < deadline:
                pass  # its driver is being resumed
        self._taken.clear()


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


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


FaultsIn: TypeAlias = Callable[[list[dict[str, Any]]], list[str]]
"""Finds what is wrong with the lines that ranks have written down."""

STATE_LOST: Final = "all workers that held the "
"""What a run says when it ends because no worker has the state any more,"""

OLDER: Final = "training continues from an older one"
"""and when it goes on from the older state of workers that had left training."""


def disturbed_schedule(run: DisturbedRun, seed: int, faults_in: FaultsIn) -> Verdict:
    """Do one, on a run that trains. It may end the run if as many workers were killed or stopped as held the state."""
    began, lost, older = time.monotonic(), run.steps_lost(), run.output().count(OLDER)
    done = run.disturb(random.Random(seed))
    try:
        goes_on = run.wait_for_training(time.monotonic())
    except TimeoutError as error:
        return Verdict(", ".join(done), [str(error)])
    lines = [line for line in run.lines() if line["at"] > began]
    faults = faults_in(lines)
    # A worker that is stopped for longer than its lease is given up.
    hurt = sum(what.startswith(("kill rank", "stop")) for what in done)
    copies = min((line["size"] for line in lines), default=SIZE) // run.HOLDERS
    if run.steps_lost() != lost and not (run.output().count(OLDER) > older and hurt >= copies):
        faults.append(f"{run.steps_lost() - lost} steps lost")
    if not goes_on and not (STATE_LOST in run.output() and hurt >= copies):
        faults.append("the run has ended")
    return Verdict(", ".join(done), faults, over="" if goes_on else "ok: the state was lost, and the run ended")


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
            if not run.wait_for_training(0):
                raise SystemExit(f"the run has ended before seed {seed}:\n{run.output()[-SHOWN:]}")
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
