"""How many GPUs an allocation has on each of its nodes.

With `--gpus` or `--gres`, nodes may have different numbers, and the environment has that of the script's node alone.
And in a job with `--gpus`, Slurm refuses a step on one node unless the step names that node's number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from edriver.driver.engines.slurm.answers import gpus_of, gpus_on_node
from edriver.driver.engines.slurm.commands import RunCommand


class NodeGpus:
    """Asks slurmctld, once, if the environment does not say it.

    Args:
        environment: Slurm's variables of the allocation.
        run: runs a command of Slurm.
    """

    def __init__(self, environment: Mapping[str, str], run: RunCommand) -> None:
        self._job = environment.get("SLURM_JOB_ID", "")
        self._known = not gpus_on_node(environment) or "SLURM_GPUS_PER_NODE" in environment
        self._run = run
        self._found: dict[str, int] = {}
        self._asking = asyncio.Lock()  # the agents of all nodes are started at once

    async def find(self) -> Mapping[str, int]:
        """The GPUs by node; empty if no node has GPUs, or each has as many as SLURM_GPUS_ON_NODE says.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        async with self._asking:
            if not self._known:
                shown = await self._run(("scontrol", "show", "job", "--details", self._job))
                for nodes, count in gpus_of(shown, self._job):
                    expanded = await self._run(("scontrol", "show", "hostnames", nodes))
                    self._found |= dict.fromkeys(expanded.split(), count)
                self._known = True
        return self._found
