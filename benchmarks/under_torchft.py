"""A run under torchft: a lighthouse, replica groups, and a supervisor that fills places again."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from types import TracebackType

from benchmarks.jobs import EXIT_BOUND, HarnessError, Job, Workload, free_port

LIGHTHOUSE = shutil.which("torchft_lighthouse") or str(Path(sysconfig.get_path("scripts"), "torchft_lighthouse"))
"""Beside this Python, or on PATH where it was installed into a folder of its own."""

TUNING = (
    "--min_replicas=1",
    "--quorum_tick_ms=20",
    "--join_timeout_ms=500",
    "--heartbeat_timeout_ms=400",
)
STEPS_TO_STOP = 30


def installed() -> bool:
    """Whether torchft is there to be compared with."""
    return importlib.util.find_spec("torchft") is not None


class TorchftJob(Job):
    """A run under torchft. The supervisor starts a replica again at once, while its place is wanted.

    Args:
        workload: what to train.
    """

    script = "benchmarks.torchft_job"
    """The module that trains."""

    width = 1
    """How many workers a replica has."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._replicas: dict[int, list[subprocess.Popen[bytes]]] = {}
        self._port = free_port()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._wanted.clear()
        super().__exit__(kind, error, trace)

    def launch(self, size: int) -> None:
        """Start the lighthouse and the replicas."""
        self._start([LIGHTHOUSE, "--bind", f"0.0.0.0:{self._port}", *TUNING], {})
        self.resize(size)

    def resize(self, size: int) -> None:
        """Start the replicas that are missing; end those that are too many by SIGTERM."""
        with self._lock:
            before, self._wanted = self._wanted, set(range(size // self.width))
            for place in self._wanted - before:
                self._start_replica(place)
            for place in before - self._wanted:
                for worker in self._replicas[place]:
                    worker.terminate()

    def finish(self) -> int:
        """Name the step to stop at, and wait for the replicas; returns the first exit code that is not 0, or 0.

        Raises:
            HarnessError: they do not end.
        """
        with self._lock:
            places, self._wanted = self._wanted, set()
            last = self.look()[-1].last_step
            unfinished = self.folder / "stop.unfinished"
            unfinished.write_text(str(last + STEPS_TO_STOP))
            unfinished.replace(self.folder / "stop")
        try:
            codes = [worker.wait(EXIT_BOUND) for place in places for worker in self._replicas[place]]
        except subprocess.TimeoutExpired:
            raise HarnessError("the replicas do not end when their job does", self.folder) from None
        self.look()
        return next((code for code in codes if code), 0)

    def _start_replica(self, place: int) -> None:
        command = [sys.executable, "-m", self.script, *self.workload.flags(self.folder)]
        settings = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}",
            "REPLICA": str(place),
            "WORLD_SIZE": str(self.width),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        replica = [self._start(command, {**settings, "RANK": str(rank)}) for rank in range(self.width)]
        self._replicas[place] = replica
        for worker in replica:
            threading.Thread(target=self._watch, args=(place, replica, worker), daemon=True).start()

    def _watch(self, place: int, replica: list[subprocess.Popen[bytes]], worker: subprocess.Popen[bytes]) -> None:
        worker.wait()
        with self._lock:
            if place in self._wanted and self._replicas[place] is replica:
                for other in replica:
                    other.kill()
                self._start_replica(place)


class TorchftShardedJob(TorchftJob):
    """The same with replicas of two workers, over which a model is sharded. A replica that loses one ends, at once."""

    script = "benchmarks.torchft_sharded_job"
    width = 2
