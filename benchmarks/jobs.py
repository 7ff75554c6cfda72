"""One run of the churn workload, under whichever system: started, watched through its records, ended.

Each system has a file of its own: under_edriver.py and so on make a Job of it.
"""

from __future__ import annotations

import abc
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.history import History, Round
from benchmarks.processes import MARK, kill_all, processes_of
from benchmarks.records import RecordReader
from tests.session_guard import guard_this_session

ROOT = Path(__file__).resolve().parents[1]
LOOK_SECONDS = 0.02
EXIT_BOUND = 300.0


class HarnessError(Exception):
    """A run did not do in time what the benchmark expects.

    Attributes:
        what: what it did, or what was waited for.
    """

    def __init__(self, what: str, folder: Path) -> None:
        super().__init__(f"{what}; see {folder}")
        self.what = what


@dataclass(frozen=True, slots=True)
class Workload:
    """The flags of the workload: see benchmarks/workload.py."""

    samples: int = 2048
    batch_size: int = 8
    hidden: int = 512
    step_seconds: float = 0.02
    commit_steps: int = 0
    digest: bool = False
    device: str = "cpu"
    boot_seconds: float = 0.0
    layers: int = 1

    def flags(self, folder: Path) -> list[str]:
        """As a command line's end."""
        found = ["--folder", str(folder)]
        found += ["--samples", str(self.samples), "--batch-size", str(self.batch_size)]
        found += ["--hidden", str(self.hidden), "--step-seconds", str(self.step_seconds)]
        found += ["--commit-steps", str(self.commit_steps), "--device", self.device]
        found += ["--layers", str(self.layers)] if self.layers > 1 else []
        found += ["--boot-seconds", str(self.boot_seconds)] if self.boot_seconds else []
        return [*found, "--digest"] if self.digest else found


def end_well_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does: with the run that is under way.

    However it ends, SIGKILL included, nothing that it starts from now on outlives it.
    """
    guard_this_session()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


class Job(abc.ABC):
    """What all systems' runs have in common. A context: at its end no process of the run is left.

    Args:
        workload: what to train.

    Attributes:
        folder: the run's own, with the output and the records of its processes.
        history: what was read of the records so far.
        workload: as given.
    """

    elastic = True
    """Whether the run fills a lost worker's place again."""

    def __init__(self, workload: Workload) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="churn-"))
        self.history = History()
        self.workload = workload
        self._records = self.folder / "records"
        self._records.mkdir()
        self._reader = RecordReader(self._records)
        self._mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []
        self._launched = 0.0
        self._keep = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_all(self._mark)
        for process in self._started:
            process.wait()
        if kind is None and not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @abc.abstractmethod
    def launch(self, size: int) -> None:
        """Start the run, with 1 to 4 workers."""

    def resize(self, size: int) -> None:
        """Ask for another number of workers."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait for what a system prepares behind the training, if it does."""
        return

    @property
    def launched(self) -> float:
        """When the first process of the run was started, in seconds of the monotonic clock."""
        return self._launched

    def keep(self) -> None:
        """Keep the folder for a look at what happened; an exception keeps it, too."""
        self._keep = True

    @property
    def ended(self) -> bool:
        """Whether what was started first has ended."""
        return self._started[0].poll() is not None

    def processes(self) -> dict[int, str]:
        """The living processes of this run: command lines by process id."""
        return processes_of(self._mark)

    def look(self) -> list[Round]:
        """The rounds so far."""
        self.history.add(self._reader.read())
        return self.history.rounds

    def retire(self, pids: Iterable[int]) -> None:
        """Take in the last records of workers that have ended, and delete them: a long run has thousands."""
        self.look()
        for pid in pids:
            self._reader.retire(pid)

    def wait_until(self, happened: Callable[[list[Round]], bool], bound: float, what: str) -> None:
        """Look until it has happened.

        Raises:
            HarnessError: it has not within so many seconds, or the run has ended.
        """
        deadline = time.monotonic() + bound
        while not happened(self.look()):
            if self._started[0].poll() is not None:
                raise HarnessError(f"the run ended with {self._started[0].returncode} before: {what}", self.folder)
            if time.monotonic() > deadline:
                raise HarnessError(f"not within {bound:g} s: {what}", self.folder)
            time.sleep(LOOK_SECONDS)

    def wait_for_steps(self, size: int, steps: int, after: float = 0.0, bound: float = 300.0) -> None:
        """Wait until a round of that size, begun after that time, has finished so many steps, and is the newest."""

        def happened(rounds: list[Round]) -> bool:
            if not rounds or rounds[-1].size != size or len(rounds[-1].starts) != size:
                return False
            began = min(start.time for start in rounds[-1].starts.values())
            return began > after and len(list(rounds[-1].completions())) >= steps

        self.wait_until(happened, bound, f"{steps} steps by {size} workers")

    def finish(self) -> int:
        """Tell the job to stop at the end of an epoch and wait; returns the exit code of what was started first.

        Raises:
            HarnessError: it does not end.
        """
        self._tell_to_stop()
        return self.wait()

    def wait(self) -> int:
        """Wait until the run has ended; returns the exit code of what was started first.

        Raises:
            HarnessError: it does not end.
        """
        try:
            code = self._started[0].wait(EXIT_BOUND)
        except subprocess.TimeoutExpired:
            raise HarnessError("the run does not end when its job does", self.folder) from None
        self.look()
        return code

    def _tell_to_stop(self) -> None:
        (self.folder / "stop").touch()

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        if not self._started:
            self._launched = time.monotonic()
        with (self.folder / f"output-{len(self._started)}.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
                    "XDG_STATE_HOME": str(self.folder / "state"),
                    MARK: self._mark,
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process


def free_port() -> int:
    """A TCP port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
