"""The cluster of these tests itself: without it the others would prove nothing."""

from __future__ import annotations

import pytest

from tests.engines.slurm.cluster import Cluster

pytestmark = pytest.mark.engines


def test_a_lost_node_is_down_and_comes_back(slurm: Cluster) -> None:
    job = slurm.command("sbatch", "--parsable", "--nodes=2", "--no-kill", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait(lambda: slurm.jobs("%T %N") == ["RUNNING node[1-2]"], "the job runs")
    slurm.lose_node("node2")
    slurm.wait(lambda: slurm.states()["node2"].startswith("down"), "the node is down")
    assert slurm.jobs("%i %T %N") == [f"{job} RUNNING node1"]
    slurm.clear()
    assert slurm.states()["node2"] == "idle"


def test_a_job_goes_on_while_slurmctld_is_stopped(slurm: Cluster) -> None:
    slurm.command("sbatch", "--nodes=1", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait(lambda: slurm.jobs("%T") == ["RUNNING"], "the job runs")
    slurm.stop("slurmctld")
    assert slurm.states() == {}
    assert slurm.step_processes("node1")
    slurm.start_controller()
    slurm.wait(lambda: slurm.states() != {}, "slurmctld answers")
    assert slurm.jobs("%T") == ["RUNNING"]
