"""A run that is taken over in a Slurm job: in the same allocation, in that job after a requeue, in another, in none."""

from __future__ import annotations

from edriver.driver.engines.slurm.requeue import present_environment, requeued

FIRST = {"A": "b", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
AGAIN = {"A": "c", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[3-4]", "SLURM_RESTART_COUNT": "1"}
OTHER = {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n5"}


def test_the_variables_are_those_of_the_job_that_the_driver_runs_in() -> None:
    assert present_environment(FIRST, FIRST) == FIRST
    assert present_environment(FIRST, AGAIN) == {**AGAIN, "A": "b"}
    assert present_environment(FIRST, OTHER) == {**OTHER, "A": "b"}
    assert present_environment(FIRST, {"A": "c"}) == FIRST
    assert present_environment({"A": "b"}, {"A": "c"}) == {"A": "b"}


def test_the_agents_are_gone_after_a_requeue_alone() -> None:
    assert requeued(FIRST, AGAIN) == "Slurm has requeued job 7, and ended what ran in it"
    assert requeued(AGAIN, {**AGAIN, "SLURM_RESTART_COUNT": "2"})
    assert requeued(FIRST, FIRST) == requeued(AGAIN, AGAIN) == ""
    assert requeued(FIRST, OTHER) == requeued(FIRST, {}) == requeued({}, AGAIN) == ""
