"""`edriver --ray` on a real cluster: nodes come, go, are drained and killed; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import needs
from tests.engines.ray.clusters import RayCluster, ray_cluster
from tests.process.running import ROOT, SCRIPTS, Printing, running
from tests.waiting import until

pytestmark = [
    pytest.mark.engines,
    pytest.mark.needs(needs.RAY),
]

ENDLESS = {"EPOCHS": "100000"}
LEASE = 5.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        yield made


@pytest.fixture
def nodes(cluster: RayCluster) -> Iterator[list[str]]:
    """Two nodes with a CPU each; those that the test leaves are killed after it."""
    made = [cluster.add()["node"], cluster.add()["node"]]
    until(lambda: not cluster.alive() & cluster.killed, "Ray counts nodes of the test before as alive")
    yield made
    for node in made:
        cluster.kill(node)


def command(cluster: RayCluster, *flags: str) -> list[str]:
    return ["--ray", cluster.address, *flags, sys.executable, str(SCRIPTS / "train.py")]


def test_a_run_uses_the_nodes_and_leaves_nothing(cluster: RayCluster, nodes: list[str], tmp_path: Path) -> None:
    with running(command(cluster, "-np", "2"), tmp_path) as run:
        assert run.end() == 0, run.text
        for node in nodes:
            assert re.search(rf"added \S+-{node[:8]}:1", run.text)
        assert "2 workers on" in run.text
        assert run.gone()
    until(lambda: not cluster.left(), lambda: cluster.left())


def test_each_gpu_has_a_worker(cluster: RayCluster, tmp_path: Path) -> None:
    """Ray counts the GPUs that a node is said to have, and opens none."""
    made = {cluster.add(num_gpus=count)["node"][:8]: count for count in (2, 1)}
    say = "echo worker of $EDRIVER_HOST on GPU $CUDA_VISIBLE_DEVICES; exec "
    train = shlex.join([sys.executable, str(SCRIPTS / "train.py")])
    try:
        with running(["--ray", cluster.address, "-np", "3", "sh", "-c", say + train], tmp_path) as run:
            assert run.end() == 0, run.text
            found = re.findall(r"worker of \S+-(\S+) on GPU (\S+)", run.text)
            assert set(found) == {(node, str(gpu)) for node, count in made.items() for gpu in range(count)}
    finally:
        for node in cluster.alive():
            cluster.kill(node)


def test_a_killed_worker_costs_one_round(cluster: RayCluster, nodes: list[str], tmp_path: Path) -> None:
    with running(command(cluster, "-np", "2", "--min-np", "1"), tmp_path, ENDLESS) as run:
        run.line(r"rank 0 passed step 5\b")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line("round 1.2: 1 worker ")
        run.line(r"round 1\.\d+: 2 workers ")


def test_a_node_that_is_added_joins_and_one_that_is_drained_leaves(
    cluster: RayCluster, nodes: list[str], tmp_path: Path
) -> None:
    drained, _ = nodes
    with running(command(cluster, "-np", "2", "--min-np", "1"), tmp_path, ENDLESS) as run:
        run.line(r"rank 0 passed step 5\b")
        cluster.drain(drained, 120)
        run.line(rf"removed \S+-{drained[:8]}:1")
        run.line("round 1.2: 1 worker ")
        nodes.append(cluster.add()["node"])
        run.line("round 1.3: 2 workers ")
        run.process.send_signal(signal.SIGINT)
        run.end()
        assert "lost" not in run.text, run.text
    until(lambda: not cluster.left(), lambda: cluster.left())


def test_a_killed_node_is_noticed_within_the_lease(cluster: RayCluster, nodes: list[str], tmp_path: Path) -> None:
    with running(command(cluster, "-np", "2", "--min-np", "1"), tmp_path, ENDLESS) as run:
        run.line(r"rank 0 passed step 5\b")
        began = time.monotonic()
        cluster.kill(nodes.pop())
        run.line("round 1.2: 1 worker ")
        assert time.monotonic() - began < LEASE + 5, "the lease, and the round on a busy machine"


def test_a_killed_driver_leaves_no_actor(cluster: RayCluster, nodes: list[str], tmp_path: Path) -> None:
    with running(command(cluster, "-np", "2"), tmp_path, ENDLESS) as run:
        run.line(r"rank 0 passed step 5\b")
        assert len(cluster.left()) == 2
        assert cluster.demand() == [{"CPU": 1.0}] * 2
        run.process.kill()
        until(lambda: not cluster.left(), lambda: cluster.left(), bound=30.0)
        until(lambda: not cluster.demand(), lambda: cluster.demand(), bound=30.0)
        assert run.gone()


def test_a_node_that_ray_thinks_alive_and_is_not(cluster: RayCluster, tmp_path: Path) -> None:
    node, stopped = cluster.add()["node"], cluster.add()
    processes = []
    try:
        with running(command(cluster, "-np", "2", "--min-np", "1"), tmp_path, ENDLESS) as run:
            run.line(r"rank 0 passed step 5\b")
            raylet = psutil.Process(stopped["raylet"])
            processes = [raylet, *raylet.children(recursive=True)]
            for process in processes:
                process.suspend()
            began = len(run.lines)
            run.line(r"round 1\.2: 1 worker ", began)
            run.line("rank 0 passed step", len(run.lines))
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        cluster.kill(node)
        cluster.kill(stopped["node"])


def test_a_run_takes_no_more_nodes_than_it_can_use(cluster: RayCluster, nodes: list[str], tmp_path: Path) -> None:
    with running(command(cluster, "-np", "1"), tmp_path) as run:
        assert run.end() == 0, run.text
    assert "now 1 host, 1 slot" in run.text
    assert "now 2 hosts" not in run.text


def test_without_room_the_run_says_what_a_worker_takes(cluster: RayCluster, nodes: list[str], tmp_path: Path) -> None:
    flags = ("-np", "2", "--ray-resources", "licence=1", "--start-timeout", "8")
    with running(command(cluster, *flags), tmp_path) as run:
        assert run.end() == 1
    assert "has room for a worker, which takes licence=1" in run.text


def test_a_wrong_address_is_one_sentence(tmp_path: Path) -> None:
    with running(["--ray", "127.0.0.1:1", "-np", "2", sys.executable, str(SCRIPTS / "train.py")], tmp_path) as run:
        assert run.end() == 1
    assert "there is no Ray cluster at 127.0.0.1:1: nothing answers there" in run.text


def test_training_goes_on_while_rays_gcs_is_down(tmp_path: Path) -> None:
    with ray_cluster() as mortal:
        mortal.add()
        mortal.add()
        with running(command(mortal, "-np", "2"), tmp_path, {"PAUSE": "0.4"}) as run:
            run.line(r"rank 0 passed step 5\b")
            mortal.kill_gcs()
            assert run.end() == 0, run.text
            assert "done: 1 round" in run.text
            assert run.gone()


def test_a_function_is_called_in_workers_and_its_results_come_back(
    cluster: RayCluster, nodes: list[str], tmp_path: Path
) -> None:
    script = [sys.executable, "-m", "tests.engines.ray.called", cluster.address]
    called = Printing(script, ROOT, {"PYTHONPATH": str(ROOT)})
    assert called.end() == 0, called.text
    assert "results: [(0, 2, 1.0), (1, 2, 1.0)]" in called.text
    until(lambda: not cluster.left(), lambda: cluster.left())
