"""How a job that brings an agent is submitted: sbatch's command line, and the script that it wraps."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from edriver.driver.engines.slurm import pass_on
from edriver.driver.engines.slurm.steps import SHAPE_VARIABLES
from edriver.system.runs import RUN_FOLDER_VARIABLE

NOTICE: Final = 120
"""Seconds before a job's time limit at which its host is drained."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The common settings of all jobs of a run.

    Attributes:
        run_id: the run.
        partition: the partition of the jobs.
        arguments: more arguments for sbatch, which override edriver's.
        slots: the number of workers of a job.
        driver: returns HOST:PORT at which the agents reach the driver.
        credentials: the file with their credentials, on a file system that the nodes share.
    """

    run_id: str
    partition: str
    arguments: Sequence[str]
    slots: int
    driver: Callable[[], str]
    credentials: str

    @property
    def name(self) -> str:
        """The name of all jobs, by which they are found."""
        return f"edriver-{self.run_id}"

    @property
    def requeued(self) -> bool:
        """Whether Slurm queues a job again that it has preempted."""
        return "--requeue" in self.arguments

    @property
    def command(self) -> list[str]:
        """What submits one, and prints its id."""
        return ["sbatch", "--parsable", *self._options, f"--wrap={self.script}"]

    @property
    def script(self) -> str:
        """What runs on the node: the agent in the script's own place, and a step that passes on that time is up.

        Slurm announces a preemption to steps alone, and to each process in them, to which workers must not belong.
        """
        shape = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--gres=none", "--mpi=none"]
        step = shlex.join(["srun", *shape, sys.executable, "-I", "-S", pass_on.__file__])
        agent = [sys.executable, "-P", "-m", "edriver", "agent", "--driver", self.driver(), "--no-wait"]
        agent += ["--credentials", self.credentials, "--slots", str(self.slots)]
        return "\n".join(
            (
                f"unset {RUN_FOLDER_VARIABLE}",
                f"(unset {' '.join(SHAPE_VARIABLES)}; exec {step} $$) &",
                f'exec {shlex.join(agent)} --host "$SLURMD_NODENAME.job$SLURM_JOB_ID"',
            )
        )

    @property
    def _options(self) -> list[str]:
        # Not requeued: Slurm lets a requeued job wait for two minutes, and a new one can start at once.
        manners = ["--nodes=1", "--no-requeue", f"--signal=B:USR1@{NOTICE}", "--open-mode=append"]
        output = f"--output={self.name}.slurm.out"
        return [f"--partition={self.partition}", f"--job-name={self.name}", *manners, output, *self.arguments]
