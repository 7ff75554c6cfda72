"""CHAOS: what is loaded from memory while workers, agents, checkpoint servers and the driver are killed at random.

python -m benchmarks.checkpoint_chaos --schedules N [--seed S]      prints a line for each schedule, and a JSON object

Four ranks on two hosts save each step, and write down the checksum of what they save and of what they load. A schedule
is one to four kills, in and between saves, after random pauses. Then all four ranks must have started again, and for
each start since:

* all ranks have loaded the same step of the same round, and the checksum over all rows is that of what was saved;
* that step is not older than the newest one that must have survived the kills.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos import ChaosRun, Verdict, chaos
from benchmarks.processes import kill, parent_of, processes_of

HOSTS: Final = "localhost:2,127.0.0.2:2"
SIZE: Final = 4
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

    def add(self, other: Outcome) -> None:
        """Take up what was found at another schedule, faults aside."""
        self.starts += other.starts
        self.judged += other.judged
        self.zero += other.zero
        self.lost += other.lost


class CheckpointedRun(ChaosRun):
    """A run that saves its checkpoints in memory.

    Attributes:
        kills: all that were made.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kills: list[Kill] = []

    def command(self) -> Sequence[str]:
        """See ChaosRun."""
        job = Path(__file__).with_name("checkpoint_chaos_job.py")
        flags = ["-np", str(SIZE), "--min-np", "2", "-H", HOSTS, "--reset-limit", "1000000"]
        flags += ["--blacklist-cooldown-range", "0.1", "0.1", "--start-timeout", "60"]
        return [*flags, sys.executable, str(job), str(self.log), str(self.folder / "checkpoints")]

    def wait_for_training(self, after: float) -> bool:
        """Wait until the four ranks of one round have saved some steps after a moment.

        Raises:
            TimeoutError: they do not, or the run has ended.
        """
        deadline = time.monotonic() + BOUND
        while True:
            lines = [line for line in self.lines() if line["at"] > after]
            latest = max((line["drawn"] for line in lines if line["what"] == "saved"), default=None, key=_when(lines))
            saved = [line["rank"] for line in lines if line["what"] == "saved" and line["drawn"] == latest]
            if all(saved.count(rank) >= STEPS for rank in range(SIZE)):
                return True
            if time.monotonic() > deadline or self.ended:
                raise TimeoutError(f"no training within {BOUND:g} s")
            time.sleep(0.1)

    def kill(self, kind: str, draw: random.Random) -> Kill | None:
        """Kill one of these, if there is one."""
        processes = processes_of(self.mark)
        servers = {pid for pid, command in processes.items() if "edriver.checkpoint_server" in command}
        agents = sorted({parent_of(pid) for pid in servers} - {0})
        workers = {line["pid"] for line in self.lines() if line["what"] == "begins"} & processes.keys()
        if kind == "driver":
            return Kill("driver", self.replace_driver())
        candidates = {"worker": workers, "agent": set(agents), "server": servers}[kind]
        if not candidates:
            return None
        pid = draw.choice(sorted(candidates))
        at = time.monotonic()
        kill(pid)
        return Kill(kind, at)


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


def schedule(run: CheckpointedRun, seed: int, total: Outcome) -> Verdict:
    """Do one, on a run that trains.

    Args:
        run: the run.
        seed: what the schedule is drawn from.
        total: takes up what is found.
    """
    draw, kills = random.Random(seed), run.kills
    began, first = time.monotonic(), len(kills)
    time.sleep(draw.choice([0, 0, GRACE]))
    for _ in range(draw.randint(1, 4)):
        time.sleep(draw.choice([0, draw.uniform(0, LONGEST_PAUSE)]))
        made = run.kill(draw.choices([*KINDS], [*KINDS.values()])[0], draw)
        if made is not None:
            kills.append(made)
    ends_round = any(each.kind in ("worker", "agent") and each.at > began for each in kills)
    if not ends_round and (made := run.kill("worker", draw)):
        kills.append(made)
    try:
        run.wait_for_training(max((each.at for each in kills if each.kind in ("worker", "agent")), default=began))
        found = judged(run.lines(), kills, began)
    except TimeoutError as error:
        found = Outcome([str(error)])
    total.add(found)
    killed = ", ".join(f"{each.kind} at {each.at - began:.2f}" for each in kills[first:])
    return Verdict(f"killed {killed}: {found.starts} starts, lost {found.lost}", found.faults)


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    total = Outcome()
    done = chaos("checkpoint_chaos", CheckpointedRun, lambda run, seed: schedule(run, seed, total))
    found = {"starts": total.starts, "judged": total.judged, "from nothing": total.zero}
    print(json.dumps({**done, **found, "most steps lost": max(total.lost, default=0)}))
    return min(1, done["faulty"])


if __name__ == "__main__":
    sys.exit(main())
