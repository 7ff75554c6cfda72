"""A run with --slurm-partition, as tests follow it, and what takes its jobs away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.slurm.batch import TRAIN
from tests.engines.slurm.cluster import CPUS, Cluster
from tests.process.running import Run, running

WHOLE_NODE = f"--exclusive --cpus-per-task={CPUS}"


@contextmanager
def submitting(
    slurm: Cluster, folder: Path, partition: str, *args: str, more: str = "", **environ: str
) -> Iterator[Run]:
    """A run that submits jobs, each for a whole node, with more arguments for sbatch."""
    flags = ["--slurm-partition", partition, "--slurm-args", f"{WHOLE_NODE} {more}", *args, *TRAIN]
    with running(flags, folder, {**slurm.environ, "EPOCHS": "20000", **environ}) as run:
        yield run


def ended(slurm: Cluster, run: Run) -> None:
    assert run.gone(), run.left_behind()
    slurm.wait(slurm.quiet, "nothing of the run is left")


def urgent(slurm: Cluster, node: str) -> str:
    """Submit a short job that preempts what is on a node."""
    words = ("--parsable", "--partition=urgent", "--exclusive", f"--nodelist={node}", "--output=/dev/null")
    return slurm.command("sbatch", *words, "--wrap=sleep 1")
