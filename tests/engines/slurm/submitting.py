"""A run with --slurm-partition, as tests follow it, and what takes its jobs away."""

from __future__ import annotations

import signal
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


def interrupt(slurm: Cluster, run: Run) -> None:
    """End a run by Ctrl-C; nothing of it is left."""
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    ended(slurm, run)


def is_replaced(slurm: Cluster, run: Run, job: str, node: str) -> None:
    """The host of a job is lost; training goes on without it, and then with another in its place."""
    run.line(rf"host {node}\.job{job} is lost: its agent has not answered for 5 s")
    run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)")
    run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", len(run.lines))
    slurm.wait(lambda: job not in slurm.jobs("%i"), "the job is gone")


def urgent(slurm: Cluster, node: str) -> str:
    """Submit a short job that preempts what is on a node."""
    words = ("--parsable", "--partition=urgent", "--exclusive", f"--nodelist={node}", "--output=/dev/null")
    return slurm.command("sbatch", *words, "--wrap=sleep 1")
