"""Runs on a Ray cluster of four raylets on this machine: under edriver, and under Ray Train."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

from benchmarks.jobs import ROOT, Job, Workload
from benchmarks.under_edriver import EdriverJob, knows
from tests.engines.ray.clusters import RayCluster


def ray_train_installed() -> bool:
    """Whether Ray Train can be measured beside edriver: pip install "ray[train]"."""
    return all(importlib.util.find_spec(name) for name in ("ray", "pyarrow"))


class FourHostsJob(EdriverJob):
    """A run under edriver without Ray, placed as on four nodes with a CPU each."""

    def launch(self, size: int) -> None:
        """Start the driver with a worker on each of so many hosts."""
        self.start({f"127.0.0.{number}": 1 for number in range(1, size + 1)}, np=size, min_np=1)


class RayNodes:
    """A cluster, whose nodes have a CPU each.

    Args:
        count: how many of them.
    """

    def __init__(self, count: int) -> None:
        self.cluster = RayCluster("dashboard")  # Ray Train asks it
        self._nodes = [self.cluster.add()["node"] for _ in range(count)]

    def add(self) -> None:
        """Add one; returns once Ray knows it."""
        self._nodes.append(self.cluster.add()["node"])

    def kill(self, host: str) -> None:
        """Kill the one with that id, or whose id's beginning ends that name."""
        node = next(node for node in self._nodes if node.startswith(host.rpartition("-")[2]))
        self._nodes.remove(node)
        self.cluster.kill(node)


class EdriverOnRayJob(EdriverJob):
    """A run of `edriver --ray`.

    Attributes:
        nodes: the cluster's.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.nodes = RayNodes(4)

    def start(
        self, hosts: Mapping[str, int], np: int, min_np: int = 2, max_np: int = 4, flags: Sequence[str] = ()
    ) -> None:
        """Start the driver; the hosts are the cluster's nodes."""
        del hosts
        sizes = ["-np", str(np), "--min-np", str(min_np), "--max-np", str(max_np)]
        log = ["--event-log", str(self.event_log)] if knows("--event-log") else []
        where = ["--ray", self.nodes.cluster.address, "--start-timeout", "120"]
        command = [sys.executable, "-m", "edriver", *sizes, *log, *where, *flags]
        self._start([*command, sys.executable, "-m", self.script, *self.workload.flags(self.folder)], {})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.nodes.cluster.close()


class RayTrainJob(Job):
    """A run of Ray Train's TorchTrainer with ScalingConfig(num_workers=(2, 4)).

    Attributes:
        nodes: the cluster's.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.nodes = RayNodes(4)

    def launch(self, size: int) -> None:
        """Start the trainer; it takes as many workers as there are nodes, four at most."""
        del size
        job = ["-m", "benchmarks.ray_train_job", *self.workload.flags(self.folder)]
        settings = {"RAY_ADDRESS": self.nodes.cluster.address, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._start([sys.executable, *job], settings)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.nodes.cluster.close()
