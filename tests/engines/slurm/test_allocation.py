"""`edriver --slurm` in an allocation: agents are steps of the job, one a node."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.engines.slurm.batch import TRAIN, Batch
from tests.engines.slurm.cluster import Cluster
from tests.process.running import BOUND

pytestmark = pytest.mark.engines

ENDLESS = {"EPOCHS": "20000"}


def test_a_run_on_two_nodes(slurm: Cluster, tmp_path: Path) -> None:
    batch = Batch(slurm, tmp_path, ["--nodes=2", "--ntasks-per-node=2"], ["--slurm", "-np", "4", *TRAIN])
    batch.line("rank 3 passed step 5")
    names = slurm.steps(batch.job)
    assert sum(bool(re.fullmatch(r"edriver-[0-9a-f]{8}-\d+", name)) for name in names) == 2, names
    assert batch.end() == 0, batch.text
    assert re.search("done: 1 round", batch.text)
    slurm.wait(slurm.quiet, "nothing of the run is left")


ON_ITS_GPU = "echo worker of $SLURMD_NODENAME on GPU $CUDA_VISIBLE_DEVICES of $SLURM_GPUS_ON_NODE; exec "


@pytest.mark.parametrize(
    ("gpus", "slots"),
    [
        pytest.param("--gpus-per-node=1", (1, 1), id="as-many-on-each-node"),
        pytest.param("--gres=gpu:1", (1, 1), id="as-resources"),
        pytest.param("--gpus=3", (2, 1), id="two-and-one"),
        pytest.param("--ntasks=3 --gpus-per-task=1", (2, 1), id="by-task"),
        pytest.param("--exclusive", (2, 1), id="whole-nodes"),
    ],
)
def test_each_gpu_has_a_worker(slurm: Cluster, tmp_path: Path, gpus: str, slots: tuple[int, int]) -> None:
    nodes = ("gpu1", "gpu2")
    args = ["--slurm", "-np", str(sum(slots)), "sh", "-c", ON_ITS_GPU + shlex.join(TRAIN)]
    batch = Batch(slurm, tmp_path, ["--partition=gpu", "--nodes=2", *gpus.split()], args)
    assert batch.end() == 0, batch.text
    assert f"added {nodes[0]}:{slots[0]}, added {nodes[1]}:{slots[1]}; " in batch.text
    wanted = {
        f"{node} on GPU {gpu} of {count}" for node, count in zip(nodes, slots, strict=True) for gpu in range(count)
    }
    assert set(batch.found(r"worker of (\S+ on GPU \S+ of \d+)")) == wanted
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_the_loss_of_a_node_is_survived(slurm: Cluster, tmp_path: Path) -> None:
    args = ["--slurm", "-np", "3", "--min-np", "1", *TRAIN]
    batch = Batch(slurm, tmp_path, ["--nodes=3", "--ntasks-per-node=1", "--no-kill"], args, ENDLESS)
    batch.line("rank 2 passed step 5")
    slurm.lose_node("node3")
    batch.line(r"host node3 is lost")
    batch.line(r"rank \d of 2 .* at step ([5-9]|\d\d)")
    slurm.wait(lambda: slurm.states()["node3"].startswith("down"), "the node is down")
    batch.line(r"removed node3:1")
    after = len(batch.lines)
    batch.line(r"rank 0 passed step", after)
    slurm.command("scancel", batch.job)
    batch.end()
    batch.line("SIGTERM: stopping the workers")
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_the_workers_of_a_node_that_is_drained_train_on_until_others_take_their_places(
    slurm: Cluster, tmp_path: Path
) -> None:
    args = ["--slurm", "-np", "2", "--max-np", "2", "--min-np", "1", *TRAIN]
    batch = Batch(slurm, tmp_path, ["--nodes=3", "--ntasks-per-node=1"], args, ENDLESS)
    batch.line("rank 1 passed step 5")
    after = len(batch.lines)
    slurm.command("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    batch.line(r"round 1\.2: 2 workers on node1, node3$", after)
    batch.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", after)
    slurm.command("scontrol", "update", "NodeName=node2", "State=RESUME")
    assert "of 1 pid" not in batch.text, "there were always two"
    slurm.command("scancel", batch.job)
    batch.end()
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_training_goes_on_while_slurmctld_is_stopped(slurm: Cluster, tmp_path: Path) -> None:
    args = ["--slurm", "-np", "2", "--min-np", "1", *TRAIN]
    batch = Batch(slurm, tmp_path, ["--nodes=2", "--ntasks-per-node=1"], args, ENDLESS)
    batch.line("rank 1 passed step 5")
    slurm.stop("slurmctld")
    batch.line("poll failed, keeping 2 hosts, 2 slots: squeue ")
    after = len(batch.lines)
    batch.line("rank 1 passed step", after)
    slurm.start_controller()
    batch.line("discovery answers again: 2 hosts, 2 slots", after)
    assert "round 1.1 ended" not in batch.text
    slurm.command("scancel", batch.job)
    batch.end()
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_the_time_limit_is_announced_and_the_run_ends_in_good_order(slurm: Cluster, tmp_path: Path) -> None:
    args = ["--slurm", "-np", "2", *TRAIN]
    # Slurm's clock for time limits has minutes: the notice comes up to a minute early.
    directives = ["--nodes=2", "--ntasks-per-node=1", "--time=1", "--signal=B:USR1@60"]
    batch = Batch(slurm, tmp_path, directives, args, ENDLESS)
    batch.line("SIGUSR1: stopping the workers")
    assert batch.end() == 128 + 10
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_a_cancelled_job_ends_in_good_order(slurm: Cluster, tmp_path: Path) -> None:
    batch = Batch(slurm, tmp_path, ["--nodes=2", "--ntasks-per-node=1"], ["--slurm", "-np", "2", *TRAIN], ENDLESS)
    batch.line("rank 1 passed step 5")
    slurm.command("scancel", batch.job)
    batch.end()
    assert "SIGTERM: stopping the workers" in batch.text
    assert "was killed by SIGKILL" not in batch.text
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_the_jobs_of_an_array_are_runs_of_their_own(slurm: Cluster, tmp_path: Path) -> None:
    directives = ["--array=0-1", "--nodes=2", "--ntasks-per-node=1", "--exclusive"]
    script = "exec {command} > $SLURM_ARRAY_TASK_ID.out 2>&1"
    batch = Batch(slurm, tmp_path, directives, ["--slurm", "-np", "2", *TRAIN], ENDLESS, script)
    outputs = [tmp_path / f"{task}.out" for task in range(2)]

    def both_train() -> bool:
        return all(each.exists() and "rank 1 passed step 5" in each.read_text() for each in outputs)

    slurm.wait(both_train, "both train", BOUND)
    texts = [each.read_text() for each in outputs]
    assert len({node for text in texts for node in re.findall(r"(node\d):1", text)}) == 4
    slurm.command("scancel", f"{batch.job}_0")
    slurm.wait(lambda: len(slurm.jobs()) == 1, "one of them has ended")
    assert "SIGTERM: stopping the workers" in outputs[0].read_text()
    passed = outputs[1].read_text().count("rank 1 passed step")
    slurm.wait(lambda: outputs[1].read_text().count("rank 1 passed step") > passed, "the other one trains on", BOUND)
    slurm.command("scancel", batch.job)
    slurm.wait(slurm.quiet, "nothing of the runs is left")
    assert "lost" not in outputs[1].read_text()
