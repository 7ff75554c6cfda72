"""edriver inside a Ray job: `ray job submit`."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.engines.ray.clusters import RayCluster, ray_cluster
from tests.process.running import ROOT, SCRIPTS, Printing, running
from tests.waiting import until

pytestmark = [
    pytest.mark.engines,
    pytest.mark.needs(needs.RAY),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster("dashboard") as made:
        made.add()
        made.add()
        # The dashboard takes jobs once an agent of Ray's own has registered there.
        until(lambda: subprocess.run([*submit(made), "--", "true"], capture_output=True).returncode == 0)
        yield made


def submit(cluster: RayCluster) -> list[str]:
    """What submits a job."""
    return [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", cluster.dashboard]


def test_a_function_is_called_in_workers_by_a_job(cluster: RayCluster) -> None:
    environment = json.dumps({"env_vars": {"PYTHONPATH": str(ROOT)}})
    program = [sys.executable, "-m", "tests.engines.ray.called"]
    job = Printing([*submit(cluster), "--runtime-env-json", environment, "--", *program])
    assert job.end() == 0, job.text
    assert "results: [(0, 2, 1.0), (1, 2, 1.0)]" in job.text


def test_the_runs_status_is_among_rays_metrics(cluster: RayCluster, tmp_path: Path) -> None:
    command = ["--ray", cluster.address, "-np", "2", sys.executable, str(SCRIPTS / "train.py")]
    with running(command, tmp_path, {"EPOCHS": "100000"}) as run:
        run_id = run.id

        def shown() -> bool:
            return any(f'run="{run_id}"' in line and line.endswith(" 2.0") for line in metrics(cluster))

        until(shown, lambda: metrics(cluster))


def metrics(cluster: RayCluster) -> list[str]:
    """The lines that Ray's nodes show of edriver's workers."""
    lines = []
    for url in cluster.metrics():
        with urllib.request.urlopen(url, timeout=30) as answer:
            lines += [line for line in answer.read().decode().splitlines() if line.startswith("ray_edriver_workers{")]
    return lines
