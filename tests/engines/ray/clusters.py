"""A Ray cluster as a test drives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.process.running import BOUND, ROOT


class RayCluster:
    """A cluster without a node for workers yet: its head has no CPU."""

    def __init__(self, *words: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  close() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.ray.cluster_process", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.killed: set[str] = set()
        try:
            made = self._answer()
            self.address: str = made["address"]
            self.dashboard: str = made["dashboard"]
        except BaseException:
            self.close()
            raise

    def add(self, cpus: int = 1, **more: Any) -> dict[str, Any]:
        """Add a node; returns its id and its raylet's pid."""
        return self._ask("add", num_cpus=cpus, **more)

    def kill(self, node: str) -> None:
        """Kill all of a node's processes with SIGKILL."""
        self._ask("kill", node=node)
        self.killed.add(node)

    def alive(self) -> set[str]:
        """The nodes that Ray counts as alive, without its head: those of a killed one among them, for a while."""
        return set(self._ask("alive")["nodes"])

    def kill_gcs(self) -> None:
        """Kill Ray's GCS."""
        self._ask("kill_gcs")

    def drain(self, node: str, seconds: int) -> None:
        """Drain a node, as a preemption."""
        ray = str(Path(sys.executable).with_name("ray"))
        words = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test's"]
        words += ["--node-id", node, "--deadline-remaining-seconds", str(seconds), "--address", self.address]
        subprocess.run([ray, "drain-node", *words], check=True, timeout=BOUND, capture_output=True)

    def left(self) -> list[str]:
        """The names of actors that have not ended, and of placement groups."""
        names: list[str] = self._ask("left")["names"]
        return names

    def demand(self) -> list[Any]:
        """What the autoscaler has been asked for."""
        asked: list[Any] = self._ask("demand")["bundles"]
        return asked

    def metrics(self) -> list[str]:
        """Where its nodes show their metrics."""
        urls: list[str] = self._ask("metrics")["urls"]
        return urls

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(BOUND)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, do: str, **words: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(BOUND, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
        finally:
            timer.cancel()
        self._process.wait()
        self._errors.seek(0)
        raise AssertionError(f"the process of the Ray cluster has ended:\n{self._errors.read().decode()}")


@contextmanager
def ray_cluster(*words: str) -> Iterator[RayCluster]:
    """A cluster that ends with its test."""
    cluster = RayCluster(*words)
    try:
        yield cluster
    finally:
        cluster.close()
