"""A real run that is watched while something is done to it: whether it goes on, what it takes, and what it says."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.vitals import vitals_of
from tests.process.running import BOUND, Run, edriver, running
from tests.waiting import until

JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]
LOOK = 0.5
"""Seconds between two looks at a process's memory."""

MAX_DISTANCE = 100
"""Steps after which a run ends once it was asked to: all its workers have read the request by then."""


@dataclass
class Watched:
    """A run, and what was seen of it.

    Attributes:
        run: the run.
        folder: its working folder.
        records: the folder for its records.
        most: the greatest resident bytes of each process, by name.
        said: what a case has found, by name.
    """

    run: Run
    folder: Path
    records: Path
    most: dict[str, int] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The run's."""
        return self.run.id

    @property
    def own_records(self) -> Path:
        """Where its records are."""
        return self.records / self.run_id

    def status(self) -> dict[str, Any]:
        """What `edriver status --json` says; how long that takes is noted, and how long it is."""
        began = time.monotonic()
        answer = edriver("status", "--json", "--run", self.run_id)
        assert answer.returncode == 0, answer.stderr
        self.note_most("status, seconds", round(time.monotonic() - began, 2))
        self.note_most("status, bytes", len(answer.stdout))
        found = json.loads(answer.stdout)
        assert isinstance(found, dict)
        return found

    def events(self) -> list[dict[str, Any]]:
        """What its event log has so far: whole lines."""
        lines = (self.own_records / "events.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def warnings(self) -> dict[str, str]:
        """What its status says has impaired it: the kind of each cause, and its text."""
        return {warning["cause"]["kind"]: warning["cause"]["text"] for warning in self.status()["warnings"]}

    def causes(self) -> dict[str, int]:
        """How often each kind of cause stands in the event log."""
        found: dict[str, int] = {}
        for event in self.events():
            kind = event.get("cause", {}).get("kind", "")
            if kind:
                found[kind] = found.get(kind, 0) + 1
        return found

    def steps(self) -> list[tuple[int, float]]:
        """Each step of rank 0, and when it was made, by the monotonic clock."""
        try:
            lines = (self.folder / "steps").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        pairs = [line.split() for line in lines if line.endswith("\n")]
        return [(int(step), float(at)) for step, at in pairs]

    def wait(self, what: str, true: Callable[[], object], seconds: float = BOUND) -> None:
        """Wait until something is true."""

        def look() -> object:
            found = true()
            assert found or self.run.process.poll() is None, f"it ended before {what}:\n{self.run.text}"
            return found

        until(look, lambda: f"{what}\n{self.run.text[-4000:]}", bound=seconds, every=0.1)

    def wait_for_steps(self, more: int = 20) -> None:
        """Wait until so many more steps are made."""
        last = self.steps()[-1:]
        wanted = (last[0][0] if last else 0) + more
        self.wait(f"at step {wanted}", lambda: (steps := self.steps()) and steps[-1][0] >= wanted)

    def end(self) -> int:
        """Have the script end; returns the exit code."""
        (self.folder / "end.new").write_text(str(self.steps()[-1][0] + MAX_DISTANCE))
        (self.folder / "end.new").rename(self.folder / "end")
        return self.run.end()

    def sizes(self) -> dict[str, int]:
        """Bytes of each file of its records."""
        return {path.name: path.stat().st_size for path in sorted(self.own_records.iterdir())}

    def longest_pause(self) -> float:
        """Seconds of the longest time between two steps of rank 0."""
        times = [at for _, at in self.steps()]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def note_most(self, name: str, value: float) -> None:
        """Note the greatest of some values."""
        self.said[name] = max(self.said.get(name, 0), value)

    def look(self) -> None:
        """Note the memory of driver, agents and workers."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    environ = (entry / "environ").read_bytes()
                    if f"EDRIVER_TEST={self.run.mark}".encode() not in environ:
                        continue
                    name = role_of(command)
                    if name:
                        self.most[name] = max(self.most.get(name, 0), vitals_of(int(entry.name)).memory)


def role_of(command: Sequence[bytes]) -> str:
    """What a process of a run is, by its command line; empty: nothing that is watched."""
    if b"edriver.agent.main" in command:
        return "agent"
    if b"edriver" in command and b"-m" in command:
        return "driver"
    return "worker" if any(word.endswith(b"job.py") for word in command) else ""


@contextmanager
def watched(
    folder: Path,
    flags: Sequence[str],
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = JOB,
    records: Path | None = None,
    through: Sequence[str] = (),
) -> Iterator[Watched]:
    """A run of the job, whose memory a thread looks at."""
    records = records or folder / "records"
    more = {"FOLDER": str(folder), "XDG_STATE_HOME": str(folder / "state"), **(environ or {})}
    with running([*flags, "--records", str(records), *command], folder, more, through) as run:
        found, over = Watched(run, folder, records), Event()

        def look_on() -> None:
            while not over.wait(LOOK):
                found.look()

        thread = Thread(target=look_on, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()


def reported(found: Watched) -> list[str]:
    """What was seen, in lines."""
    lines = [f"{name}: {value}" for name, value in found.said.items()]
    lines += [f"greatest memory of the {name}: {size / 1e6:.0f} MB" for name, size in sorted(found.most.items())]
    lines.append(f"longest time between two steps: {found.longest_pause():.1f} s, steps: {len(found.steps())}")
    with contextlib.suppress(OSError):
        lines.append("records: " + ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in found.sizes().items()))
    lines.append(f"causes in the event log: {found.causes()}")
    own = [line for line in found.run.lines if line.startswith("edriver")]
    lines.append(f"the driver's own lines: {len(own)}")
    lines += [f"    {line[:160]}" for line in own[-12:]]
    return lines
