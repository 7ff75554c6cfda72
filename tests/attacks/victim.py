"""A live run that is attacked, and what must be true of it afterwards."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.process.running import Run, running

SCRIPT = [sys.executable, str(Path(__file__).with_name("victim_script.py"))]

USUAL = (
    r"edriver: run [0-9a-f]{8}: \d+ workers (\(at least \d+, [^)]+\) )?of ",
    r"edriver: records: ",
    r"edriver: for a report: ",
    r"edriver: its status elsewhere: edriver status --credentials ",
    r"edriver: steered from elsewhere: edriver drain HOST --credentials ",
    r"edriver: hosts dial in by: edriver agent --driver ",
    r"edriver: discovery: discovery finds no hosts$",
    r"edriver: discovery: added \S+(, added \S+)*; now \d+ hosts?, \d+ slots?$",
    r"edriver: waiting: \d of \d workers are ready$",
    r"edriver: round 1\.1: \d+ workers on ",
    r"edriver: step \d+, ",
    r"edriver: all workers are done; their processes end, or enter the script's next run$",
    r"edriver: done: 1 round, ",
    r"\[\d+\]<stdout>:rank \d+ passed step \d+$",
)
"""All that a run says to which nothing happens."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one worker, as its script has written it down."""

    rank: int
    size: int
    step: int
    digest: int


class Victim:
    """A run that trains.

    Attributes:
        run: its driver.
        folder: where its files are; other accounts may enter it, as they may enter most of a machine.
        temporary: its TMPDIR: every account may make files there, as in /tmp.
        size: its number of workers.
    """

    def __init__(self, run: Run, folder: Path, size: int) -> None:
        self.run = run
        self.folder = folder
        self.temporary = folder / "t"
        self.size = size
        self._known: tuple[str, ...] = USUAL

    @property
    def run_id(self) -> str:
        return self.run.id

    @property
    def own_folder(self) -> Path:
        """The run's own folder, with the driver's socket."""
        (found,) = [path.parent for path in self.temporary.glob("edriver-*/driver.sock")]
        return found

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob("steps-*.jsonl"))

    def processes(self) -> list[int]:
        """All its processes on this machine: the driver, its guard, agents, theirs, workers."""
        return [self.run.process.pid, *(int(text.partition(":")[0]) for text in self.run.left_behind())]

    def steps(self) -> dict[int, list[Step]]:
        """What each worker has written down so far, by its process id."""
        found = {}
        for pid in self.workers():
            *lines, _ = (self.folder / f"steps-{pid}.jsonl").read_text().split("\n")
            found[pid] = [Step(**json.loads(line)) for line in lines]
        return found

    def trains(self) -> None:
        """Wait until every worker has made some more steps."""
        after = len(self.run.lines)
        for rank in range(self.size):
            self.run.line(rf"rank {rank} passed step \d", after)

    def may_say(self, *patterns: str) -> None:
        """From now on it may print lines that match these from their beginnings, too."""
        self._known += patterns

    def goes_on(self) -> None:
        """Let it train on, and look at what has become of it so far: as `is_unharmed`, but for its end."""
        assert self.run.process.poll() is None, self.run.text
        self.trains()
        self._check()

    def is_unharmed(self) -> None:
        """Let it train on, then end it, and look at what has become of it.

        It ends with 0; the same processes have trained from the first step to the last, in one round, with the same
        parameters on all ranks after each step; it has said nothing but what any run says, and leaves nothing.
        """
        self.trains()
        (self.folder / "stop").touch()
        assert self.run.end() == 0, self.run.text
        self._check()
        assert len({len(steps) for steps in self.steps().values()}) == 1
        assert self.run.gone(), self.run.left_behind()
        assert list(self.temporary.glob("edriver-*/driver.sock")) == []

    def _check(self) -> None:
        known = re.compile("|".join(self._known))
        strange = [line for line in self.run.lines if not known.match(line)]
        assert not strange, strange
        workers = list(self.steps().values())
        assert len(workers) == self.size
        for steps in workers:
            assert [step.step for step in steps] == list(range(1, len(steps) + 1))
            assert {step.size for step in steps} == {self.size}
        for together in zip(*workers, strict=False):  # one may be a step ahead
            assert len({step.digest for step in together}) == 1


@contextmanager
def victim(
    *flags: str, size: int = 2, environ: dict[str, str] | None = None, through: Sequence[str] = ()
) -> Iterator[Victim]:
    """A run that trains, on this machine if the flags do not say otherwise.

    Args:
        flags: edriver's, but for -np.
        size: how many workers.
        environ: more variables for it.
        through: the command that runs the driver.
    """
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as name:  # sockets want short paths
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "t").mkdir()
        (folder / "t").chmod(0o1777)
        ours = {"VICTIM": name, "TMPDIR": f"{name}/t", "XDG_STATE_HOME": f"{name}/state", **(environ or {})}
        with running(["-np", str(size), *flags, *SCRIPT], folder, ours, through) as run:
            attacked = Victim(run, folder, size)
            yield attacked
