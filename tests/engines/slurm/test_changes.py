"""What Slurm and its administrator do to jobs that run: queue them again, give them more or less time, suspend them."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.submitting import ended, interrupt, is_replaced, submitting, urgent
from tests.process.running import BOUND

pytestmark = pytest.mark.engines


def test_a_preempted_job_that_slurm_queues_again_is_not_submitted_again(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "rough", "-np", "2", "--min-np", "1", more="--requeue") as run:
        run.line("rank 1 passed step 5")
        jobs = dict(line.split() for line in slurm.jobs("%i %N"))
        job, node = next(iter(jobs.items()))
        urgent(slurm, node)
        run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)")
        slurm.wait(lambda: f"{job} PENDING" in slurm.jobs("%i %T"), "the job waits again")
        run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", len(run.lines))  # after two minutes, which are Slurm's own
        assert sorted(slurm.jobs("%i")) == sorted(jobs)
        assert [line for line in run.lines if "submitted" in line] == [
            "edriver: submitted 2 jobs to Slurm's partition rough"
        ]
        interrupt(slurm, run)


def test_the_agent_of_a_node_that_slurm_has_given_up_stays_in_the_run(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm queues its job again, which would bring a second agent while the first one trains."""
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1", more="--requeue") as run:
        run.line("rank 1 passed step 5")
        job, node = slurm.jobs("%i %N")[0].split()
        slurm.stop(node)
        run.line("cancelled 1 job in Slurm that the run does not need")
        slurm.wait(lambda: job not in slurm.jobs("%i"), "the job that waits is gone")
        run.line("rank 1 passed step", len(run.lines))
        assert "round 1.1 ended" not in run.text
        slurm.start_node(node)
        interrupt(slurm, run)


def test_an_agent_that_is_started_twice_does_no_harm_and_ends_with_the_run(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "main", "-np", "1") as run:
        run.line("rank 0 passed step 5")
        job, node = slurm.jobs("%i %N")[0].split()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1] for pid in slurm.tasks(node)]
        (agent,) = [command for command in commands if "--no-wait" in command]
        second = subprocess.Popen(agent, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            run.line(rf"a second agent has dialled in as host {node}\.job{job}")
            run.line("rank 0 passed step", len(run.lines))
            assert "is lost" not in run.text
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
            assert second.wait(BOUND) == 1, "it ends with the run, as nothing listens there any more"
        finally:
            second.kill()
            second.wait()
        ended(slurm, run)


def test_the_drain_follows_a_time_limit_that_is_changed(slurm: Cluster, tmp_path: Path) -> None:
    limited = "--time=60 --signal=B:USR1@50"
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1", more=limited) as run:
        run.line("rank 1 passed step 5")
        (longer, _), (shorter, node) = (line.split() for line in slurm.jobs("%i %N"))
        slurm.command("scontrol", "update", f"JobId={longer}", "TimeLimit=1")
        slurm.command("scontrol", "update", f"JobId={shorter}", "TimeLimit=1")
        slurm.command("scontrol", "update", f"JobId={longer}", "TimeLimit=60")
        run.line(rf"host {node}\.job{shorter} is drained: its agent received SIGUSR1")
        run.line(r"rank 1 of 2 .* at step [1-9]", len(run.lines))
        assert len(re.findall("is drained", run.text)) == 1, "the other has time"
        assert "killed" not in run.text
        interrupt(slurm, run)


def test_a_suspended_job_is_replaced(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1") as run:
        run.line("rank 1 passed step 5")
        job, node = slurm.jobs("%i %N")[0].split()
        slurm.command("scontrol", "suspend", job)
        is_replaced(slurm, run, job, node)
        interrupt(slurm, run)


def test_a_run_whose_jobs_are_all_suspended_goes_on_when_they_are_resumed(slurm: Cluster, tmp_path: Path) -> None:
    with submitting(slurm, tmp_path, "main", "-np", "2", "--min-np", "1") as run:
        run.line("rank 1 passed step 5")
        jobs = slurm.jobs("%i")
        for job in jobs:
            slurm.command("scontrol", "suspend", job)
        run.line("left alone, because no other worker is known to hold the state")
        for job in [job for job in jobs if f"{job} SUSPENDED" in slurm.jobs("%i %T")]:
            slurm.command("scontrol", "resume", job)
        run.line(r"rank \d of \d .* at step ([5-9]|\d\d)", len(run.lines))
        run.line(r"rank 1 passed step ([5-9]|\d\d)", len(run.lines))
        interrupt(slurm, run)
