"""`edriver --slurm-partition`: jobs that the run submits, and whose agents dial in."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.engines.slurm.batch import TRAIN, Batch
from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.submitting import WHOLE_NODE, ended, interrupt, is_replaced, submitting, urgent
from tests.process.running import ROOT, edriver, running

pytestmark = pytest.mark.engines

COUNTED = (sys.executable, str(ROOT / "tests" / "engines" / "scripts" / "counted.py"))


def test_jobs_come_and_what_is_not_needed_is_given_back(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1", "--max-np", "3") as run:
        run.line("submitted 3 jobs to Slurm's partition main")
        run.line(r"rank 2 of 3 .* at step")
        run_id = run.id
        done = edriver("resize", "2", "--run", run_id)
        assert done.returncode == 0, done.stderr
        run.line("cancelled 1 job in Slurm that the run does not need")
        after = len(run.lines)
        run.line("rank 1 passed step", after)
        slurm.wait(lambda: len(slurm.jobs()) == 2, "one job has ended")
        interrupt(slurm, run)


def test_a_partition_that_is_not_there_is_one_sentence(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "nosuch", "-np", "1") as run:
        assert run.end() == 1
        assert re.search("Slurm does not accept jobs of this run: sbatch .*[Ii]nvalid partition", run.text), run.text
        assert "Traceback" not in run.text
        ended(slurm, run)


def test_a_job_that_starts_after_the_run_has_ended_ends_at_once(slurm: Cluster, tmp_path: Path) -> None:
    for node in slurm.nodes:
        slurm.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    with submitting(slurm, tmp_path, "main", "-np", "1") as run:
        run.line("1 job waits in Slurm's queue")
        run.process.send_signal(signal.SIGKILL)
        assert run.end() == -signal.SIGKILL
    (job,) = slurm.jobs("%i")
    for node in slurm.nodes:
        slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
    slurm.wait(slurm.quiet, "the job has ended")
    (output,) = tmp_path.glob("edriver-*.slurm.out")
    assert "the run has ended: nothing listens at its driver's address" in output.read_text()
    assert f"JobId={job}" in slurm.command("scontrol", "show", "job", "--oneliner", job)


def test_a_preempted_job_is_left_first_and_submitted_again(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "spot", "-np", "2", "--min-np", "1") as run:
        run.line("rank 1 passed step 5")
        job, node = slurm.jobs("%i %N")[0].split()
        urgent(slurm, node)
        run.line(r"is drained: its agent received SIGUSR1")
        run.line(r"rank 0 of 1 .* at step")
        run.line("submitted 1 job")
        shown = slurm.command("scontrol", "show", "job", "--oneliner", job)
        assert "JobState=COMPLETED" in shown, "it was left before it was killed"
        run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", len(run.lines))
        interrupt(slurm, run)


def test_ten_preemptions_in_a_row_lose_nothing(slurm: Cluster, tmp_path: Path) -> None:
    flags = ["--slurm-partition", "spot", "--slurm-args", WHOLE_NODE, "-np", "2", "--min-np", "1"]
    environ = {**slurm.environ, "PYTHONPATH": f"{ROOT}"}
    with running([*flags, *COUNTED], tmp_path, environ) as run:
        run.line(r"rank 1 of 2 .* at step")
        for turn in range(10):
            after = len(run.lines)
            nodes = slurm.jobs("%P %T %N")
            busy = [line.split()[2] for line in nodes if line.startswith("spot RUNNING")]
            urgent(slurm, busy[turn % len(busy)])
            run.line("is drained: its agent received SIGUSR1", after)
            gone = len(run.lines)
            run.line(r"rank 1 of 2 .* at step", gone)
        (tmp_path / "enough").touch()
        assert run.end() == 0, run.text
        ended(slurm, run)
    counted = json.loads((tmp_path / "trained").read_text())
    assert set(counted["trained"]) == {counted["epochs"]}
    (report,) = [line for line in run.lines if "done: " in line]
    assert not re.search("failure|lost", report), report


def test_a_driver_whose_own_job_is_cancelled_gives_all_back(slurm: Cluster, tmp_path: Path) -> None:
    args = ["--slurm-partition", "main", "--slurm-args", WHOLE_NODE, "-np", "2", *TRAIN]
    batch = Batch(slurm, tmp_path, ["--nodes=1", "--ntasks=1"], args, {"EPOCHS": "20000"})
    batch.line("rank 1 passed step 5")
    assert len(slurm.jobs()) == 3
    slurm.command("scancel", batch.job)
    batch.end()
    assert "SIGTERM: stopping the workers" in batch.text
    assert "was killed by SIGKILL" not in batch.text
    slurm.wait(slurm.quiet, "nothing of the run is left")


def test_a_jobs_time_limit_drains_its_host_first(slurm: Cluster, tmp_path: Path) -> None:
    # Slurm looks at time limits every half minute or so: the notice comes early.
    limited = f"{WHOLE_NODE} --time=1 --signal=B:USR1@50"
    flags = ["--slurm-partition", "main", "--slurm-args", limited, "-np", "2", "--min-np", "1", *COUNTED]
    with running(flags, tmp_path, {**slurm.environ, "PYTHONPATH": f"{ROOT}"}) as run:
        run.line("is drained: its agent received SIGUSR1")
        run.line(r"rank 1 of 2 .* at step [1-9]", len(run.lines))
        assert "killed" not in run.text
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 143
        ended(slurm, run)


def test_a_host_that_is_drained_by_hand_is_given_back_and_another_comes(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1") as run:
        run.line(r"rank 1 of 2 .* at step")
        run_id = run.id
        jobs = slurm.jobs("%i %N")
        number, node = jobs[0].split()
        after = len(run.lines)
        done = edriver("drain", f"{node}.job{number}", "--run", run_id)
        assert done.returncode == 0, done.stderr
        run.line("submitted 1 job", after)
        run.line(r"rank 1 of 2 .* at step", after)
        slurm.wait(lambda: number not in slurm.jobs("%i"), "the job is gone")
        interrupt(slurm, run)


def test_training_goes_on_while_slurmctld_is_stopped(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1") as run:
        run.line(r"rank 1 of 2 .* at step")
        slurm.stop("slurmctld")
        run.line("Slurm does not answer: squeue")
        after = len(run.lines)
        run.line("rank 1 passed step", after)
        assert "round 1.1 ended" not in run.text
        slurm.start_controller()
        slurm.wait(lambda: slurm.states() != {}, "slurmctld answers")
        interrupt(slurm, run)


def test_a_node_that_slurm_thinks_alive_and_is_not(slurm: Cluster, tmp_path: Path) -> None:
    """Its agent is stopped, and its slurmd answers: the run's own lease finds out."""
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1") as run:
        run.line("rank 1 passed step 5")
        number, node = slurm.jobs("%i %N")[0].split()
        for pid in slurm.tasks(node):
            os.kill(pid, signal.SIGSTOP)
        is_replaced(slurm, run, number, node)
        interrupt(slurm, run)
