"""CHAOS: what is loaded from memory while workers, agents, checkpoint servers and the driver are killed at random.

python -m benchmarks.checkpoint_chaos --schedules N [--seed S]      prints a line for each schedule, and a JSON object

Four ranks on two hosts save each step, and write down the checksum of what they save and of what they load. A schedule
is one to four kills, in and between saves, after random pauses. Then all four ranks must have started again, and for
each start since:

* all ranks have loaded the same step of the same round, and the checksum over all rows is that of what was saved;
* that step is not older than the newest one that must have survived the kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import MARK, kill, kill_all, parent_of, processes_of

HOSTS: Final = "localhost:2,127.0.0.2:2"
SIZE: Final = 4
SCHEDULES_PER_RUN: Final = 10
LONGEST_PAUSE: Final = 2.5
"""Seconds between two kills, at most: from none up to what a restart takes."""

GRACE: Final = 6.0
"""Seconds after which what all ranks have saved has been copied, on a machine that is busy."""

DYING: Final = 1.0
"""Seconds for which workers and the checkpoint server of a host may still live after their agent was killed: what they
save then is lost with them.
"""

STEPS: Final = 30
"""Steps that are made between two schedules, at least."""

BOUND: Final = 120.0
KINDS: Final = {"worker": 5, "agent": 2, "server": 2, "driver": 1}
"""What is killed, and how often beside the others."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Attributes:
        kind: of what.
        at: when it was made.
    """

    kind: str
    at: float


@dataclass(slots=True)
class Outcome:
    """What was found.

    Attributes:
        faults: what must not be.
        starts: number of starts of a round.
        judged: those for which a step was known that must have survived.
        lost: for each start, steps that were made and are lost.
        zero: starts from nothing.
    """

    faults: list[str] = field(default_factory=list)
    starts: int = 0
    judged: int = 0
    lost: list[int] = field(default_factory=list)
    zero: int = 0


class ChaosRun:
    """A run, whose driver may be killed and resumed.

    Args:
        folder: for all that it writes.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / "log"
        self.log.mkdir()
        self._folder = folder
        self._environ = {**os.environ, MARK: self.mark, "XDG_STATE_HOME": str(folder / "state")}
        job = Path(__file__).with_name("checkpoint_chaos_job.py")
        flags = ["-np", str(SIZE), "--min-np", "2", "-H", HOSTS, "--reset-limit", "1000000"]
        flags += ["--blacklist-cooldown-range", "0.1", "0.1", "--start-timeout", "60"]
        self._driver = self._started(*flags, sys.executable, str(job), str(self.log), str(folder / "checkpoints"))

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

    def lines(self) -> list[dict[str, Any]]:
        """What ranks have written down, in order of time."""
        found = []
        for path in self.log.iterdir():
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # it was killed while it wrote
                    found.append(json.loads(line))
        return sorted(found, key=lambda line: line["at"])

    def wait_for_training(self, after: float) -> None:
        """Wait until the four ranks of one round have saved some steps after a moment.

        Raises:
            TimeoutError: they do not.
        """
        deadline = time.monotonic() + BOUND
        while True:
            lines = [line for line in self.lines() if line["at"] > after]
            latest = max((line["drawn"] for line in lines if line["what"] == "saved"), default=None, key=_when(lines))
            saved = [line["rank"] for line in lines if line["what"] == "saved" and line["drawn"] == latest]
            if all(saved.count(rank) >= STEPS for rank in range(SIZE)):
                return
            if time.monotonic() > deadline or self._driver.poll() is not None:
                raise TimeoutError(f"no training within {BOUND:g} s")
            time.sleep(0.1)

    def kill(self, kind: str, draw: random.Random) -> Kill | None:
        """Kill one of these, if there is one."""
        processes = processes_of(self.mark)
        servers = {pid for pid, command in processes.items() if "edriver.checkpoint_server" in command}
        agents = sorted({parent_of(pid) for pid in servers} - {0})
        workers = {line["pid"] for line in self.lines() if line["what"] == "begins"} & processes.keys()
        if kind == "driver":
            self._driver.kill()
            self._driver.wait()
            at = time.monotonic()
            (record,) = (self._folder / "state" / "edriver").glob("????????")
            self._driver = self._started("resume", str(record))
            return Kill("driver", at)
        candidates = {"worker": workers, "agent": set(agents), "server": servers}[kind]
        if not candidates:
            return None
        pid = draw.choice(sorted(candidates))
        at = time.monotonic()
        kill(pid)
        return Kill(kind, at)

    def end(self) -> None:
        """End all of it."""
        kill_all(self.mark)
        self._driver.wait()

    def output(self) -> str:
        """What its drivers have printed."""
        return (self._folder / "output").read_text(errors="replace")


def _when(lines: list[dict[str, Any]]) -> Any:
    at = {line["drawn"]: line["at"] for line in lines if line["what"] == "saved"}
    return lambda drawn: at[drawn]


def judged(lines: list[dict[str, Any]], kills: list[Kill], since: float) -> Outcome:
    """What is wrong with what ranks have loaded since a moment. Pure.

    Args:
        lines: what they have written down, in order of time.
        kills: all kills of the run.
        since: the moment.
    """
    outcome = Outcome()
    sums: dict[tuple[int, int], dict[int, int]] = {}
    done: dict[tuple[int, int], dict[int, float]] = {}
    sizes: dict[tuple[int, int], int] = {}
    starts: list[list[dict[str, Any]]] = []
    for line in lines:
        key = line.get("drawn", 0), line["step"]
        if line["what"] == "saves":
            sums.setdefault(key, {})[line["rank"]] = line["checksum"]
            sizes[key] = line["size"]
        elif line["what"] == "saved":
            if line["kept"]:
                done.setdefault(key, {})[line["rank"]] = line["at"]
        elif (
            starts
            and line["rank"] not in {each["rank"] for each in starts[-1]}
            and line["at"] - starts[-1][0]["at"] < 1
        ):
            starts[-1].append(line)
        else:
            starts.append([line])
    for start in starts:
        first = start[0]["at"]
        if first < since:
            continue
        outcome.starts += 1
        loaded = {(line["drawn"], line["step"], line["checksum"]) for line in start}
        if len(loaded) > 1:
            outcome.faults.append(f"ranks have loaded different things: {sorted(loaded)}")
        drawn, step, checksum = loaded.pop()
        if step:
            parts = sums.get((drawn, step), {})
            if len(parts) != sizes.get((drawn, step)):
                outcome.faults.append(f"step {step} was loaded, which only ranks {sorted(parts)} have saved")
            elif _wrapped(sum(parts.values())) != checksum:
                outcome.faults.append(f"step {step} was loaded, and is not what was saved")
        else:
            outcome.zero += 1
        latest = _lineage(lines, first)
        made = max((line["step"] for line in lines if line.get("drawn") in latest and line["at"] < first), default=0)
        outcome.lost.append(made - step)
        whole = {
            key: max(times.values())
            for key, times in done.items()
            if len(times) == sizes[key] and max(times.values()) < first
        }
        sure = [key[1] for key, at in whole.items() if key[0] in latest and _survives(at, kills, first)]
        if sure:
            outcome.judged += 1
            if step < max(sure):
                outcome.faults.append(f"step {step} was loaded, although {max(sure)} was whole and copied")
    return outcome


def _lineage(lines: list[dict[str, Any]], before: float) -> set[int]:
    """The round that trained last before a moment: its steps are the newest."""
    drawn = [line["drawn"] for line in lines if line["what"] == "saves" and line["at"] < before]
    return set(drawn[-1:])


def _survives(saved: float, kills: list[Kill], start: float) -> bool:
    """Whether a step that all ranks had saved at a moment must be there at another one."""
    if any(each.kind in ("agent", "server") and saved - DYING < each.at <= saved for each in kills):
        return False
    here = [each for each in kills if saved < each.at < start]
    memory = [each for each in here if each.kind in ("agent", "server")]
    if memory and any(each.kind == "driver" for each in here):
        return False  # copies are made once the next driver has heard of all
    copied = saved + GRACE
    for each in memory:
        if each.at < copied:
            return False
        copied = each.at + 2 * GRACE  # then it lies on two hosts again
    return True


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


@contextmanager
def chaos_run() -> Iterator[ChaosRun]:
    """A run in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="edriver-chaos-"))
    run = ChaosRun(folder)
    try:
        yield run
    finally:
        run.end()
        shutil.rmtree(folder)


def schedule(run: ChaosRun, seed: int, kills: list[Kill]) -> Outcome:
    """Do one, on a run that trains; returns what was found."""
    draw = random.Random(seed)
    began = time.monotonic()
    time.sleep(draw.choice([0, 0, GRACE]))
    for _ in range(draw.randint(1, 4)):
        time.sleep(draw.choice([0, draw.uniform(0, LONGEST_PAUSE)]))
        made = run.kill(draw.choices([*KINDS], [*KINDS.values()])[0], draw)
        if made is not None:
            kills.append(made)
    ends_round = any(each.kind in ("worker", "agent") and each.at > began for each in kills)
    if not ends_round and (made := run.kill("worker", draw)):
        kills.append(made)
    run.wait_for_training(max((each.at for each in kills if each.kind in ("worker", "agent")), default=began))
    return judged(run.lines(), kills, began)


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_chaos")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    seeds = iter(range(options.seed, options.seed + options.schedules))
    total, faulty, done = Outcome(), 0, 0
    began = time.monotonic()
    seed = next(seeds, None)
    while seed is not None:
        with chaos_run() as run:
            run.wait_for_training(0)
            kills: list[Kill] = []
            for _ in range(SCHEDULES_PER_RUN):
                first = len(kills)
                try:
                    found = schedule(run, seed, kills)
                except TimeoutError as error:
                    found = Outcome([f"{error}; the driver's last lines: {run.output()[-1500:]}"])
                done += 1
                faulty += bool(found.faults)
                total.starts += found.starts
                total.judged += found.judged
                total.zero += found.zero
                total.lost += found.lost
                verdict = "; ".join(found.faults) or "ok"
                names = ", ".join(each.kind for each in kills[first:])
                if found.faults:
                    print(run.output()[-3000:], [(each.kind, round(each.at, 2)) for each in kills[first:]])
                print(f"seed {seed}: killed {names}: {found.starts} starts, lost {found.lost}: {verdict}", flush=True)
                seed = next(seeds, None)
                if seed is None or found.faults:
                    break
    print(
        json.dumps(
            {
                "schedules": done,
                "faulty": faulty,
                "starts": total.starts,
                "judged": total.judged,
                "from nothing": total.zero,
                "most steps lost": max(total.lost, default=0),
                "seconds": round(time.monotonic() - began),
            }
        )
    )
    return min(1, faulty)


if __name__ == "__main__":
    sys.exit(main())
