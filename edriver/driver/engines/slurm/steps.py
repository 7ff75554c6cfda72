"""`--slurm`: agents as steps of the Slurm job that the driver runs in, one step a node, by srun.

srun's command line names the host and nothing else: the join config, with token and environment, goes over its standard
input, which srun passes on to the step. The agent then connects to the driver. srun's end is the agent's, unless srun
alone was killed.

An agent that does not end is cancelled as a step: to kill srun would leave the step running.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from edriver.driver.engines.slurm.commands import RunCommand, SlurmError, run_command
from edriver.driver.engines.slurm.node_gpus import NodeGpus
from edriver.driver.launch.launcher import AgentLaunchError, Bootstrap, LaunchContext, agent_command
from edriver.driver.launch.watched import MAX_STDERR_LINES, WatchedProcess, standard_input
from edriver.system.child import Child
from edriver.system.runs import RUN_FOLDER_VARIABLE
from edriver.text.phrases import exit_text
from edriver.text.printable import printable

_log = logging.getLogger("edriver.driver")

SHAPE_VARIABLES: Final = (
    *("SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_GPUS"),
    *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_GRES"),
    *("SLURM_KILL_BAD_EXIT", "SLURM_MEM_BIND", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE"),
    *("SLURM_NNODES", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_TRES", "SLURM_NO_KILL"),
    *("SLURM_NUM_PROCS", "SLURM_TASKS_PER_NODE", "SLURM_THREADS_PER_CORE", "SLURM_TRES_BIND", "SLURM_TRES_PER_TASK"),
)
"""What sbatch sets of the shape of the job, and srun would take for the shape of the step: an agent's step is one task
that has all that the job has of its node."""


def step_command(host: str, name: str, gpus: int = 0) -> list[str]:
    """The command that starts a step with the agent of a host.

    Args:
        host: the node.
        name: the step's name.
        gpus: the number of the job's GPUs there; 0: no GPUs, or Slurm itself knows the step's number.
    """
    shape = ("--nodes=1", "--ntasks=1", f"--nodelist={host}", "--mem=0", "--cpu-bind=none", "--mpi=none")
    # Other steps use the node, too; the loss of a node or a worker's exit code is for the driver to judge.
    manners = ("--overlap", "--no-kill", "--kill-on-bad-exit=0", f"--job-name={name}", "--output=none")
    devices = [f"--gpus={gpus}"] if gpus else []
    return ["srun", *shape, *devices, *manners, *agent_command(host)]


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The driver's environment, as srun is to see it."""
    return {
        name: value
        for name, value in environment.items()
        if name not in SHAPE_VARIABLES and name != RUN_FOLDER_VARIABLE  # by which what is the driver's own is found
    }


class StepLauncher:
    """Starts each agent as a step of the job.

    Args:
        run_id: the run, for the names of the steps.
        environment: the driver's own.
        run: runs a command of Slurm.
        spawn: starts srun with a command and a join config; its standard error is a pipe.
    """

    def __init__(
        self,
        run_id: str,
        environment: Mapping[str, str],
        run: RunCommand = run_command,
        spawn: Callable[[Sequence[str], Mapping[str, str], bytes], Child] | None = None,
    ) -> None:
        self._run_id = run_id
        self._job = environment.get("SLURM_JOB_ID", "")
        self._environment = step_environment(environment)
        self._gpus = NodeGpus(environment, run)
        self._run = run
        self._spawn = spawn or _spawn
        self._steps: dict[int, _Step] = {}

    @classmethod
    def of(cls, context: LaunchContext) -> StepLauncher:
        """The launcher of a run: `--launcher slurm`."""
        return cls(context.run_id, os.environ)

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Start an agent.

        Raises:
            AgentLaunchError: srun is not installed, or slurmctld does not answer.
            OSError: srun cannot be started.
        """
        name = f"edriver-{self._run_id}-{bootstrap.agent_id}"
        join_config = await bootstrap.join_config()
        try:
            gpus = (await self._gpus.find()).get(host, 0)
        except SlurmError as error:
            raise AgentLaunchError(str(error)) from error
        try:
            process = self._spawn(step_command(host, name, gpus), self._environment, join_config)
        except FileNotFoundError:
            raise AgentLaunchError("srun was not found: run edriver inside a Slurm allocation") from None
        step = _Step(host, name, bootstrap)

        def reaped(code: int) -> None:
            del self._steps[bootstrap.agent_id]
            if code < 0 and bootstrap.connected.is_set() and not step.stopped:
                _log.warning("host %s: its srun %s; the agent continues without it", host, exit_text(code))
            else:
                bootstrap.ended(step.reason(code))

        step.srun = WatchedProcess(process, reaped, step.listen)
        self._steps[bootstrap.agent_id] = step

    async def stop(self, agent_id: int, /) -> None:
        """Have Slurm kill the step, and end srun.

        Slurm may not reach the node. Its agent then ends on its own: the driver refuses it.
        """
        if not (step := self._steps.get(agent_id)):
            return
        step.stopped = True
        try:
            await self._cancel(step.name)
        except SlurmError as error:
            _log.warning("host %s: its step %s could not be cancelled: %s", step.host, step.name, error)
        step.srun.kill()
        await step.srun.gone.wait()

    def watches(self, agent_id: int, /) -> bool:
        """Reported by srun, while it runs."""
        return agent_id in self._steps

    async def _cancel(self, name: str) -> None:
        listed = await self._run(("squeue", "--steps", "--noheader", f"--jobs={self._job}", "--format=%i|%j"))
        for line in listed.splitlines():
            number, _, step_name = line.strip().partition("|")
            if step_name == name:
                await self._run(("scancel", "--signal=KILL", number))


class _Step:
    """What srun says, and whether it was stopped by this process."""

    srun: WatchedProcess

    def __init__(self, host: str, name: str, bootstrap: Bootstrap) -> None:
        self.host = host
        self.name = name
        self.stopped = False
        self._connected = bootstrap.connected
        self._lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)

    def listen(self, line: str) -> None:
        self._lines.append(line)
        if self._connected.is_set() and not self.stopped:  # earlier lines are part of why it does not connect
            _log.warning("host %s: %s", self.host, printable(line))

    def reason(self, code: int) -> str:
        """Why the agent is not there, or no longer."""
        if self._connected.is_set() or not self._lines:
            return f"its step {exit_text(code)}"
        return f"its step {exit_text(code)}: {printable(' | '.join(self._lines))}"


def _spawn(command: Sequence[str], environment: Mapping[str, str], join_config: bytes) -> Child:
    with standard_input(join_config) as config_file:
        return Child(
            command,
            stdin=config_file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            environment=environment,
        )
