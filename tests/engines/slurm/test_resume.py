"""Runs under Slurm whose driver is killed: the next one finds the jobs and steps, with the workers in them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.engines.slurm.batch import TRAIN, Batch
from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.submitting import submitting
from tests.process.resuming import Resumed, assert_every_step_once, environ_of, kill, wait_for_steps

pytestmark = pytest.mark.engines


def test_jobs_of_the_run_are_those_of_the_next_driver(slurm: Cluster, tmp_path: Path) -> None:
    environ = environ_of(tmp_path, EPOCHS="40000")
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1", **environ) as run:
        run.line("rank 1 passed step 5")
        pids, jobs = run.pids(), slurm.jobs("%i")
        kill(run)
        wait_for_steps(tmp_path / "reports", 20)
        resumed = Resumed(run, tmp_path, environ=slurm.environ)
        resumed.line("another driver has taken over, number 2 of this run")
        resumed.line("rank 0 passed step")
        assert slurm.jobs("%i") == jobs
        os.kill(pids[1], signal.SIGKILL)
        lost = resumed.line(r"worker 2 \(rank 1, \S+\.job(\d+):0\) was killed by SIGKILL")[1]
        resumed.line(rf"rank 0 of 1 pid {pids[0]} at step ")  # it was never restarted
        slurm.command("scancel", lost)
        resumed.line("submitted 1 job to Slurm's partition main")
        resumed.process.send_signal(signal.SIGINT)
        assert resumed.end() == 130, resumed.text
        assert run.gone(), run.left_behind()
        slurm.wait(slurm.quiet, "nothing of the run is left")
    assert_every_step_once(tmp_path / "reports")
    assert list((tmp_path / "state" / "edriver").glob("agents-*.json")) == []


def test_in_an_allocation(slurm: Cluster, tmp_path: Path) -> None:
    """As the job's script does it: the command line again, with the run's name."""
    environ = environ_of(tmp_path, EPOCHS="40000")
    args = ["--run", "big", "--slurm", "-np", "2", "--min-np", "1", *TRAIN]
    script = "{command} & echo $! > driver.pid; wait; {command}"
    directives = ["--nodes=2", "--ntasks-per-node=1"]
    batch = Batch(slurm, tmp_path, directives, args, environ, script)
    batch.line("rank 1 passed step 5")
    pids = {int(match) for match in batch.found(r"rank \d of 2 pid (\d+) at step 0")}
    os.kill(int((tmp_path / "driver.pid").read_text()), signal.SIGKILL)
    batch.line("another driver has taken over, number 2 of this run")
    after = len(batch.lines)
    batch.line("rank 1 passed step", after)
    assert len(pids) == 2
    assert {int(match) for match in batch.found(r"rank \d of 2 pid (\d+) at step")} == pids
    slurm.command("scancel", batch.job)
    batch.end()
    slurm.wait(slurm.quiet, "nothing of the run is left")
    assert_every_step_once(tmp_path / "reports")


def test_another_job_with_the_same_script_goes_on_from_disk(slurm: Cluster, tmp_path: Path) -> None:
    """The driver of the first is killed, for want of memory, say, and Slurm ends its job."""
    environ = environ_of(tmp_path, CHECKPOINT=str(tmp_path / "checkpoints"), EPOCHS="40000")
    args = ["--run", "big", "--slurm", "-np", "2", "--min-np", "1", *TRAIN]
    directives = ["--nodes=2", "--ntasks-per-node=1"]
    first = Batch(slurm, tmp_path, directives, args, environ)
    first.line("rank 1 passed step 25")
    slurm.command("scancel", "--batch", "--signal=KILL", first.job)
    first.end()
    slurm.wait(slurm.quiet, "the first job has ended")
    second = Batch(slurm, tmp_path, directives, args, environ)
    begun = second.line(r"from the checkpoint of step (\d+)$")
    assert int(begun[1]) >= 20
    second.line(r"no worker holds the state: it is loaded from disk; at least \d+ steps? lost$")
    second.line("rank 1 passed step")
    slurm.command("scancel", second.job)
    second.end()
    slurm.wait(slurm.quiet, "nothing of the run is left")


@pytest.mark.parametrize("nodes_fail", [False, True], ids=["by-request", "nodes-fail"])
def test_a_job_that_slurm_requeues_goes_on_from_disk(slurm: Cluster, tmp_path: Path, nodes_fail: bool) -> None:
    """The same script in a new allocation, in which no worker lives any more: one command line for both."""
    checkpoints = tmp_path / "checkpoints"
    environ = environ_of(tmp_path, CHECKPOINT=str(checkpoints), EPOCHS="40000")
    args = ["--run", "big", "--slurm", "-np", "2", "--min-np", "1", *TRAIN]
    directives = ["--nodes=2", "--ntasks-per-node=1", "--requeue"]
    batch = Batch(slurm, tmp_path, directives, args, environ)
    batch.line("rank 1 passed step 25")
    after = len(batch.lines)
    batch.requeue(nodes_fail=nodes_fail)
    begun = batch.line(r"from the checkpoint of step (\d+)$", after)
    assert int(begun[1]) >= 20
    if nodes_fail:  # and their driver with them; else the run ends, and another one of its name begins
        batch.line(r"no worker holds the state: it is loaded from disk; at least \d+ steps? lost$", after)
    batch.line(f"rank 0 of 2 pid .* at step {begun[1]}$", after)
    batch.line("rank 1 passed step", after)
    slurm.command("scancel", batch.job)
    batch.end()
    slurm.wait(slurm.quiet, "nothing of the run is left")
