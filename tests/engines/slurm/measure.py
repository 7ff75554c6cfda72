"""How long it takes from "Slurm has given a node" to a worker that boots there: python -m tests.engines.slurm.measure

Slurm's time is the line of slurmctld's log, in milliseconds; the worker's is when the kernel has started its process.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.engines.slurm.batch import TRAIN, Batch
from tests.engines.slurm.cluster import CPUS, Cluster, cluster
from tests.process.running import running

ROUNDS = 5


def allocated(slurm: Cluster, job: str) -> float:
    """When slurmctld has given a job its node, in seconds since the epoch."""
    log = (slurm.folder / "slurmctld.log").read_text()
    match = re.search(rf"\[(\S+)\] sched(?:/backfill: \S+)?: (?:Allocate|Started) JobId={job} ", log)
    assert match, log[-2000:]
    return datetime.fromisoformat(match[1]).timestamp()


def started(pid: int) -> float:
    """When the kernel has started a process, in seconds since the epoch, to 10 ms."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def outside(slurm: Cluster) -> float:
    """With --slurm-partition."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = f"--slurm-args=--exclusive --cpus-per-task={CPUS}"
        flags = ["--slurm-partition", "main", arguments, "-np", "1", *TRAIN]
        with running(flags, Path(folder), {**slurm.environ, "EPOCHS": "20000"}) as run:
            pid = int(run.line(r"rank 0 of 1 pid (\d+)")[1])
            (job,) = slurm.jobs("%i")
            return started(pid) - allocated(slurm, job)


def inside(slurm: Cluster) -> float:
    """With --slurm, from the start of the batch job, driver and all."""
    with tempfile.TemporaryDirectory() as folder:
        args = ["--slurm", "-np", "1", *TRAIN]
        batch = Batch(slurm, Path(folder), ["--nodes=1", "--ntasks-per-node=1"], args, {"EPOCHS": "20000"})
        pid = int(batch.line(r"rank 0 of 1 pid (\d+)")[1])
        seconds = started(pid) - allocated(slurm, batch.job)
        slurm.command("scancel", batch.job)
        slurm.wait(slurm.quiet, "the job has ended")
        return seconds


def main() -> None:
    with cluster() as slurm:
        for way in (outside, inside):
            seconds = []
            for _ in range(ROUNDS):
                slurm.clear()
                seconds.append(way(slurm))
            shown = " ".join(f"{each:.2f}" for each in seconds)
            sys.stdout.write(f"{way.__doc__} {shown}; median {statistics.median(seconds):.2f} s\n")


if __name__ == "__main__":
    main()
