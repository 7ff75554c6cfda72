"""CHAOS of sharded training: kills, stops, drains and resizes at random, and what is left of the bits.

python -m benchmarks.sharded_chaos --schedules N [--seed S]      prints a line for each schedule, and a JSON object

Two replicas of two workers on two hosts train without a commit. A schedule is one to four disturbances after random
pauses; then what was taken is given back, and all four workers train again. From then on

* every digest that a rank has written down is that of an undisturbed run at the same step and position;
* no round has lost a step.

A run may end if workers of one position were killed at once: then it says that a position is lost.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import MARK, kill, kill_all, processes_of
from benchmarks.sharded_chaos_job import SHARDS, Undisturbed

SIZE: Final = 4
HOSTS: Final = ("localhost:2", "127.0.0.2:2")
SPARE: Final = "127.0.0.3:2"
SCHEDULES_PER_RUN: Final = 10
LONGEST_PAUSE: Final = 2.0
"""Seconds between two disturbances, at most."""

LONGEST_STOP: Final = 8.0
"""Seconds for which a worker is stopped, at most: longer and shorter than its lease."""

DIGESTS: Final = 3
"""Digests that each rank writes down before a schedule is over."""

BOUND: Final = 240.0
KINDS: Final = {"kill": 6, "stop": 3, "drain": 2, "hosts": 2, "resize": 2, "driver": 1}
"""What is done, and how often beside the others."""

POSITIONS_LOST: Final = "all workers that held the newest state of these positions"


class Disturbed:
    """A run.

    Args:
        folder: for all that it writes.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.name = f"chaos-{self.mark[:8]}"
        self.killed: list[int] = []  # the positions of workers that were
        self._taken: list[tuple[str, ...]] = []
        self._log = folder / "log"
        self._log.mkdir()
        self._folder = folder
        self._environ = {**os.environ, MARK: self.mark, "XDG_STATE_HOME": str(folder / "state")}
        self._hosts(*HOSTS)
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(folder / 'hosts'))}\n")
        script.chmod(0o755)
        job = Path(__file__).with_name("sharded_chaos_job.py")
        flags = ["-np", str(SIZE), "--min-np", str(SHARDS), "--max-np", str(SIZE), "--replica-size", str(SHARDS)]
        flags += ["--host-discovery-script", str(script), "--reset-limit", "1000000", "--run", self.name]
        flags += ["--blacklist-cooldown-range", "0.1", "0.1", "--start-timeout", "200"]
        self._driver = self._started(*flags, sys.executable, str(job), str(self._log))

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "edriver", *words],
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ask(self, *words: str) -> bool:
        """Ask its driver for something; returns whether that has agreed."""
        return self._started(*words, "--run", self.name).wait(timeout=BOUND) == 0

    def _hosts(self, *lines: str) -> None:
        new = self._folder / "hosts.new"
        new.write_text("\n".join(lines) + "\n")
        new.replace(self._folder / "hosts")

    @property
    def ended(self) -> bool:
        """Whether its driver has ended."""
        return self._driver.poll() is not None

    def lines(self) -> list[dict[str, Any]]:
        """What ranks have written down, in order of time."""
        found = []
        for path in self._log.iterdir():
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # it was killed while it wrote
                    found.append(json.loads(line))
        return sorted(found, key=lambda line: line["at"])

    def steps_lost(self) -> int:
        """Steps that rounds have lost, by the run's records."""
        (record,) = (self._folder / "state" / "edriver").glob("*/events.jsonl")
        events = [json.loads(line) for line in record.read_text().splitlines(keepends=True) if line.endswith("\n")]
        rounds = {json.dumps(event["round"]["round_id"]): event["round"] for event in events if "round" in event}
        return sum(int(found["steps_lost"]) for found in rounds.values())

    def wait_for_training(self, after: float) -> bool:
        """Wait until four ranks of one round have written digests after a moment; False: the run has ended.

        Raises:
            TimeoutError: they have not.
        """
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            found = [line for line in self.lines() if line["what"] == "digest" and line["at"] > after]
            recent = found[-SIZE * DIGESTS :]
            whole = all(sum(line["rank"] == rank for line in recent) >= DIGESTS for rank in range(SIZE))
            if whole and {line["size"] for line in recent} == {SIZE}:
                return True
            if self.ended:
                return False
            time.sleep(0.2)
        raise TimeoutError(f"four workers do not train within {BOUND:g} s")

    def disturb(self, kind: str, draw: random.Random) -> str:
        """Do one of these; returns what was done, for people."""
        began: dict[int, int] = {line["pid"]: line["rank"] for line in self.lines() if line["what"] == "begins"}
        workers = sorted(began.keys() & processes_of(self.mark).keys())
        host = draw.choice(("localhost", "127.0.0.2"))
        match kind:
            case "kill" if workers:
                pid = draw.choice(workers)
                self.killed.append(began[pid] % SHARDS)
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
                size = draw.choice((2, 4))
                self._ask("resize", str(size))
                self._taken.append(("resize", str(SIZE)))
                return f"resize {size}"
            case "driver":
                self._driver.kill()
                self._driver.wait()
                (record,) = (path.parent for path in (self._folder / "state" / "edriver").glob("*/events.jsonl"))
                self._driver = self._started("resume", str(record))
                return "kill the driver"
        return "nothing"

    def give_back(self) -> None:
        """All that was taken."""
        self._hosts(*HOSTS)
        deadline = time.monotonic() + BOUND
        for words in self._taken:
            while not self._ask(*words) and not self.ended and time.monotonic() < deadline:
                pass  # its driver is being resumed
        self._taken.clear()

    def end(self) -> None:
        """End all of it."""
        kill_all(self.mark)
        self._driver.wait()

    def output(self) -> str:
        """What its drivers have printed."""
        return (self._folder / "output").read_text(errors="replace")


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def disturbed() -> Iterator[Disturbed]:
    """A run in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="edriver-chaos-"))
    run = Disturbed(folder)
    try:
        yield run
    finally:
        run.end()
        shutil.rmtree(folder)


def faults_in(lines: list[dict[str, Any]], undisturbed: Undisturbed) -> list[str]:
    """What is wrong with the digests that ranks have written down."""
    return [
        f"rank {line['rank']} of {line['size']} has other bits at step {line['step']}"
        for line in lines
        if line["what"] == "digest" and line["digest"] != undisturbed.digests(line["step"])[line["rank"] % SHARDS]
    ]


def schedule(run: Disturbed, seed: int, undisturbed: Undisturbed) -> tuple[list[str], list[str], bool]:
    """Do one, on a run that trains; returns what was done, what is wrong, and whether the run goes on."""
    draw = random.Random(seed)
    began, done, lost = time.monotonic(), [], run.steps_lost()
    killed = len(run.killed)
    for _ in range(draw.randint(1, 4)):
        time.sleep(draw.choice([0, draw.uniform(0, LONGEST_PAUSE)]))
        done.append(run.disturb(draw.choices([*KINDS], [*KINDS.values()])[0], draw))
    run.give_back()
    try:
        goes_on = run.wait_for_training(time.monotonic())
    except TimeoutError as error:
        return done, [str(error)], False
    faults = faults_in([line for line in run.lines() if line["at"] > began], undisturbed)
    if run.steps_lost() != lost:
        faults.append(f"{run.steps_lost() - lost} steps lost")
    if not goes_on and not (POSITIONS_LOST in run.output() and max(map(run.killed[killed:].count, range(SHARDS))) > 1):
        faults.append("the run has ended")
    return done, faults, goes_on


def _terminated(*_: object) -> None:
    """What was started is ended, too, whatever comes meanwhile."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_chaos")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    undisturbed = Undisturbed()
    last = options.seed + options.schedules
    seed, faulty, ended, began = options.seed, 0, 0, time.monotonic()
    while seed < last:
        with disturbed() as run:
            run.wait_for_training(0)
            goes_on, faults = True, list[str]()
            for _ in range(SCHEDULES_PER_RUN):
                done, faults, goes_on = schedule(run, seed, undisturbed)
                verdict = "; ".join(faults[:3]) or ("ok" if goes_on else "ok: a position was lost, and the run ended")
                print(f"seed {seed}: {', '.join(done)}: {verdict}", flush=True)
                seed += 1
                faulty += bool(faults)
                ended += not goes_on and not faults
                if faults:
                    print(run.output()[-6000:], flush=True)
                if faults or not goes_on or seed == last:
                    break
    seconds = round(time.monotonic() - began)
    print(json.dumps({"schedules": options.schedules, "faulty": faulty, "ended": ended, "seconds": seconds}))
    return min(1, faulty)


if __name__ == "__main__":
    sys.exit(main())
