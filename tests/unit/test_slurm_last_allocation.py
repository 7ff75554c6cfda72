"""A run that is taken over in a Slurm job: in the same allocation, in that job after a requeue, in another, in none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from edriver.driver.engines.last_run import last_run
from edriver.driver.engines.slurm.commands import SlurmError
from edriver.driver.engines.slurm.last_allocation import LastAllocation
from tests.waiting import BOUND

FIRST = {"A": "b", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
AGAIN = {"A": "c", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[3-4]", "SLURM_RESTART_COUNT": "1"}
OTHER = {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n5"}


def present_environment(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return last_run(now).present_environment(before, now)


def test_the_variables_are_those_of_the_job_that_the_driver_runs_in() -> None:
    assert present_environment(FIRST, FIRST) == FIRST
    assert present_environment(FIRST, AGAIN) == {**AGAIN, "A": "b"}
    assert present_environment(FIRST, OTHER) == {**OTHER, "A": "b"}
    assert present_environment(FIRST, {"A": "c"}) == FIRST
    assert present_environment({"A": "b"}, {"A": "c"}) == {"A": "b"}


GONE = "Slurm's job 7, in which the last driver ran, has ended"
FORGOTTEN = SlurmError("squeue has failed (exit code 1): slurm_load_jobs error: Invalid job id specified")
SILENT = SlurmError("squeue did not end within 15 s")


def why(
    before: Mapping[str, str],
    now: Mapping[str, str],
    answer: str | SlurmError | None = None,
    launcher: str = "slurm",
) -> str:
    """Why the agents are gone, if squeue answers this; None: it is not asked."""

    async def run(words: Sequence[str]) -> str:
        assert words == ["squeue", "--noheader", "--jobs=7", "--format=%A"]
        assert answer is not None
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    return asyncio.run(LastAllocation(run).why_agents_are_gone(before, now, launcher))


def test_the_agents_are_gone_after_a_requeue() -> None:
    assert why(FIRST, AGAIN) == "Slurm has requeued job 7, and ended what ran in it"
    assert why(AGAIN, {**AGAIN, "SLURM_RESTART_COUNT": "2"})
    assert why(FIRST, FIRST) == why(AGAIN, AGAIN) == ""


@pytest.mark.parametrize(
    ("answer", "reason"), [("", GONE), ("7\n", ""), (FORGOTTEN, GONE), (SILENT, "")], ids=["ended", "there", "old", "?"]
)
def test_in_another_job_slurm_says_whether_they_may_live(answer: str | SlurmError, reason: str) -> None:
    assert why(FIRST, OTHER, answer) == reason


def test_outside_a_job_they_may_live() -> None:
    assert why(FIRST, {}) == why({}, AGAIN) == ""


def test_agents_that_are_no_steps_of_the_allocation_may_live() -> None:
    assert why(FIRST, AGAIN, launcher="ssh") == why(FIRST, OTHER, launcher="") == ""


def test_slurm_is_asked_in_a_job_and_imported_nowhere_else() -> None:
    program = (
        "import sys, edriver.cli.resuming.resume; from edriver.driver.engines.last_run import last_run; "
        "loaded = lambda: 'edriver.driver.engines.slurm' in sys.modules; "
        "last_run({'A': 'b'}); assert not loaded(); last_run({'SLURM_JOB_ID': '7'}); assert loaded()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=BOUND)
