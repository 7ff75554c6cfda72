"""One run of the churn workload, under edriver or under torchrun: started, watched through its records, ended."""

from __future__ import annotations

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

ROOT = Path(__file__).resolve().parents[1]
LOOK_SECONDS = 0.02
EXIT_BOUND = 60.0


class HarnessError(Exception):
    """A run did not do what it had to, in time.

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
    commit_steps: int = 1
    digest: bool = False

    def flags(self, folder: Path) -> list[str]:
        """As a command line's end."""
        found = ["--folder", str(folder)]
        found += ["--samples", str(self.samples), "--batch-size", str(self.batch_size)]
        found += ["--hidden", str(self.hidden), "--step-seconds", str(self.step_seconds)]
        found += ["--commit-steps", str(self.commit_steps)]
        return [*found, "--digest"] if self.digest else found


def end_well_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does: with the run that is under way."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


class Job:
    """What the two systems' runs have in common. A context: at its end no process of the run is left.

    Args:
        workload: what to train.
    """

    def __init__(self, workload: Workload) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="churn-"))
        self.history = History()
        self.workload = workload
        self._records = self.folder / "records"
        self._records.mkdir()
        self._reader = RecordReader(self._records)
        self._mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []
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

    def keep(self) -> None:
        """Leave the folder for whoever wants to know what happened. An exception does that too."""
        self._keep = True

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

    def wait_for_steps(self, size: int, steps: int, after: float = 0.0, bound: float = 120.0) -> None:
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
        (self.folder / "stop").touch()
        try:
            code = self._started[0].wait(EXIT_BOUND)
        except subprocess.TimeoutExpired:
            raise HarnessError("the run does not end when its job does", self.folder) from None
        self.look()
        return code

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"output-{len(self._started)}.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), MARK: self._mark, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process


class EdriverJob(Job):
    """A run under edriver, with a discovery script that prints a file."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.hosts: dict[str, int] = {}
        self._script = self.folder / "discover_hosts.sh"
        self._script.write_text(f"#!/bin/sh\ncat '{self.folder}/hosts'\n")
        self._script.chmod(0o755)

    @property
    def driver(self) -> int:
        """The driver's process id."""
        return self._started[0].pid

    def start(
        self, hosts: Mapping[str, int], np: int, min_np: int = 2, max_np: int = 4, flags: Sequence[str] = ()
    ) -> None:
        """Start the driver.

        Args:
            hosts: slots by host.
            np: its -np.
            min_np: its --min-np.
            max_np: its --max-np.
            flags: more of its flags.
        """
        self.set_hosts(hosts)
        sizes = ["-np", str(np), "--min-np", str(min_np), "--max-np", str(max_np)]
        command = [sys.executable, "-m", "edriver", *sizes, *flags, "--host-discovery-script", str(self._script)]
        job = [sys.executable, "-m", "benchmarks.churn_job", *self.workload.flags(self.folder)]
        self._start([*command, *job], {})

    def set_hosts(self, hosts: Mapping[str, int]) -> None:
        """Change what discovery will find."""
        unfinished = self.folder / "hosts.unfinished"
        unfinished.write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        unfinished.replace(self.folder / "hosts")
        self.hosts = dict(hosts)


class TorchrunJob(Job):
    """A run under torchrun, with one agent a host, all on this machine.

    Args:
        workload: what to train.
        max_nodes: how many agents it may have; with more than one, one is enough to go on.
        workers: how many workers each agent has.
    """

    def __init__(self, workload: Workload, max_nodes: int, workers: int) -> None:
        super().__init__(workload)
        self._shape = ["--nnodes", f"1:{max_nodes}" if max_nodes > 1 else "1", "--nproc-per-node", str(workers)]
        self._endpoint = f"127.0.0.1:{_free_port()}"

    def start_agent(self) -> None:
        """Start one more agent; the first one also holds the rendezvous."""
        first = not self._started
        # All in torchrun's favour: by default it would wait 30 s for more agents, and 15 s for one that is gone.
        conf = f"is_host={int(first)},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "churn"]
        rendezvous += ["--rdzv-conf", conf, "--local-addr", "127.0.0.1", "--max-restarts", "10"]
        command = [sys.executable, "-m", "torch.distributed.run", *self._shape, *rendezvous]
        job = ["-m", "benchmarks.torchrun_job", *self.workload.flags(self.folder)]
        # Without the first of these its restarts hang on Gloo in torch 2.13; the others edriver sets by itself.
        settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._start([*command, *job], settings)

    def stop_agent(self) -> None:
        """Ask the last agent that was started to go."""
        self._started[-1].send_signal(signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
