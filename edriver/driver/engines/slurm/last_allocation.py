"""What has become of the allocation of a driver, where another one takes its run over in a job.

Slurm starts a job's script again when it requeues the job (`sbatch --requeue`, a node that fails, `scontrol requeue`),
and a job may be followed by another one with the same script. The nodes may be others then, and when a job has ended,
none of its steps lives.

So the next driver of `--run NAME --slurm` waits for no agent of the one before, if it is in the same job with another
SLURM_RESTART_COUNT: they are lost, and the state comes from the last checkpoint. In another job, squeue says whether
the one before has ended, too. If it has not, or does not answer, the workers count as suspected, as they may live in
theirs. Slurm's variables are those of the present job, all others those of the first driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edriver.driver.engines.last_run import LastRun
from edriver.driver.engines.slurm.commands import RunCommand, SlurmError, run_command

_LAUNCHER: Final = "slurm"
"""The launcher whose agents are steps of the driver's own allocation."""

_PREFIX: Final = "SLURM_"
_JOB: Final = "SLURM_JOB_ID"
_REQUEUES: Final = "SLURM_RESTART_COUNT"
"""How often Slurm has requeued the job; not set before the first time (sbatch(1))."""

_FORGOTTEN: Final = "Invalid job id"
"""What squeue says of a job that has ended a while ago (slurm.conf(5), MinJobAge)."""


class LastAllocation:
    """The allocation in which the driver before ran.

    Args:
        run: runs a command of Slurm.
    """

    def __init__(self, run: RunCommand) -> None:
        self._run = run

    def present_environment(self, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
        """That of the run, with Slurm's variables of the job that the driver is in now; if it is in none, as it was."""
        if _JOB not in now:
            return {**before}
        kept = {name: value for name, value in before.items() if not name.startswith(_PREFIX)}
        return kept | {name: value for name, value in now.items() if name.startswith(_PREFIX)}

    async def why_agents_are_gone(self, before: Mapping[str, str], now: Mapping[str, str], launcher: str) -> str:
        """Why no step of the driver before can live; empty: they may, or Slurm does not say."""
        if launcher != _LAUNCHER:
            return ""
        last, job = before.get(_JOB), now.get(_JOB)
        if last is None or job is None:
            return ""
        if last == job:
            requeued = now.get(_REQUEUES) != before.get(_REQUEUES)
            return f"Slurm has requeued job {job}, and ended what ran in it" if requeued else ""
        try:
            listed = await self._run(["squeue", "--noheader", f"--jobs={last}", "--format=%A"])
        except SlurmError as error:
            if _FORGOTTEN not in str(error):
                return ""
            listed = ""
        return "" if listed.strip() else f"Slurm's job {last}, in which the last driver ran, has ended"


def last_run() -> LastRun:
    """What Slurm knows of the driver before."""
    return LastAllocation(run_command)
