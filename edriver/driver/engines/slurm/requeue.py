"""What has become of the allocation of a driver, where another one takes its run over in a job. Pure.

Slurm starts a job's script again when it requeues the job (`sbatch --requeue`, a node that fails, `scontrol requeue`).
The nodes may be others then, and none of the old steps lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LAUNCHER: Final = "slurm"
"""The launcher whose agents are steps of the driver's own allocation."""

_PREFIX: Final = "SLURM_"
_JOB: Final = "SLURM_JOB_ID"
_REQUEUES: Final = "SLURM_RESTART_COUNT"
"""How often Slurm has requeued the job; not set before the first time (sbatch(1))."""


def present_environment(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """A run's environment, with Slurm's variables of the job that the driver is in now; if it is in none, as it was."""
    if _JOB not in now:
        return {**before}
    kept = {name: value for name, value in before.items() if not name.startswith(_PREFIX)}
    return kept | {name: value for name, value in now.items() if name.startswith(_PREFIX)}


def requeued(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Why no agent of the driver before can live; empty: they may."""
    job = now.get(_JOB)
    if job is None or job != before.get(_JOB) or now.get(_REQUEUES) == before.get(_REQUEUES):
        return ""
    return f"Slurm has requeued job {job}, and ended what ran in it"
