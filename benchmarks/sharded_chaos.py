"""CHAOS of sharded training: kills, stops, drains and resizes at random, and what is left of the bits.

python -m benchmarks.sharded_chaos --schedules N [--seed S]      prints a line for each schedule, and a JSON object

Two replicas of two workers on two hosts train without a commit. A schedule is one to four disturbances after random
pauses; then what was taken is given back, and all four workers train again. From then on

* every digest that a rank has written down is that of an undisturbed run at the same step and position;
* no round has lost a step.

A run may end if workers of one position were killed at once: then it says that a position is lost.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos import ChaosRun, Verdict, chaos
from benchmarks.processes import kill, processes_of
from benchmarks.sharded_chaos_job import SHARDS, Undisturbed

SIZE: Final = 4
HOSTS: Final = ("localhost:2", "127.0.0.2:2")
SPARE: Final = "127.0.0.3:2"
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


class ShardedRun(ChaosRun):
    """A run of two replicas of two workers.

    Attributes:
        killed: the positions of workers that were killed.
    """

    def __init__(self, folder: Path) -> None:
        self.killed: list[int] = []
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
        job = Path(__file__).with_name("sharded_chaos_job.py")
        flags = ["-np", str(SIZE), "--min-np", str(SHARDS), "--max-np", str(SIZE), "--replica-size", str(SHARDS)]
        flags += ["--host-discovery-script", str(script), "--reset-limit", "1000000", "--run", self._name]
        flags += ["--blacklist-cooldown-range", "0.1", "0.1", "--start-timeout", "200"]
        return [*flags, sys.executable, str(job), str(self.log)]

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
                self.replace_driver()
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


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def faults_in(lines: list[dict[str, Any]], undisturbed: Undisturbed) -> list[str]:
    """What is wrong with the digests that ranks have written down."""
    return [
        f"rank {line['rank']} of {line['size']} has other bits at step {line['step']}"
        for line in lines
        if line["what"] == "digest" and line["digest"] != undisturbed.digests(line["step"])[line["rank"] % SHARDS]
    ]


def schedule(run: ShardedRun, seed: int, undisturbed: Undisturbed) -> Verdict:
    """Do one, on a run that trains."""
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
        return Verdict(", ".join(done), [str(error)])
    faults = faults_in([line for line in run.lines() if line["at"] > began], undisturbed)
    if run.steps_lost() != lost:
        faults.append(f"{run.steps_lost() - lost} steps lost")
    if not goes_on and not (POSITIONS_LOST in run.output() and max(map(run.killed[killed:].count, range(SHARDS))) > 1):
        faults.append("the run has ended")
    return Verdict(", ".join(done), faults, over="" if goes_on else "ok: a position was lost, and the run ended")


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    undisturbed = Undisturbed()
    done = chaos("sharded_chaos", ShardedRun, lambda run, seed: schedule(run, seed, undisturbed))
    print(json.dumps(done))
    return min(1, done["faulty"])


if __name__ == "__main__":
    sys.exit(main())
