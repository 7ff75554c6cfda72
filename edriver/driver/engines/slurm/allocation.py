"""`--slurm`: the nodes of the Slurm allocation that the driver runs in, as a source of hosts.

The source asks for the job's nodes and their states. Slurm takes a node that has failed out of a job with `--no-kill`,
so the job's own list of nodes is the truth.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.sources import SourceContext
from edriver.driver.engines.slurm.answers import (
    FAILED_STATES,
    LEAVING_STATES,
    nodes_of,
    slots_by_node,
    states_of_nodes,
)
from edriver.driver.engines.slurm.commands import RunCommand, SlurmError, run_command
from edriver.driver.engines.slurm.node_gpus import NodeGpus
from edriver.model.hosts import Host, HostSet

ASK_INTERVAL: Final = 5.0
"""Seconds between two questions to slurmctld, which serves the whole cluster. Lost nodes are noticed sooner, by the
silence of their agents."""

LEAVING: Final = 120.0
"""Seconds in which a node that is being drained is left. Slurm sets no deadline: it lets the job use the node until the
job ends. It is long enough for replacements to boot in slots that are free."""

NO_ALLOCATION: Final = (
    "this is not a Slurm allocation (SLURM_JOB_ID is not set): run edriver in a script for sbatch, or in a shell of "
    "salloc"
)


class Allocation:
    """The nodes of the allocation, without those that have failed, and with notice of those that are being drained.

    Args:
        environment: Slurm's variables of the allocation.
        default_slots: slots of a node, if the allocation has neither GPUs nor tasks.
        run: runs a command of Slurm.
        clock: seconds, monotonic.

    Raises:
        DiscoveryError: the process does not run in an allocation.
    """

    def __init__(
        self, environment: Mapping[str, str], default_slots: int, run: RunCommand, clock: Callable[[], float]
    ) -> None:
        self._job = environment.get("SLURM_JOB_ID", "")
        self._at_start = environment.get("SLURM_JOB_NODELIST", "")
        if not self._job.isdecimal() or not self._at_start:
            raise DiscoveryError(NO_ALLOCATION)
        self._environment = environment
        self._default_slots = default_slots
        self._run = run
        self._gpus = NodeGpus(environment, run)
        self._clock = clock
        self._slots: dict[str, int] = {}
        self._expanded: dict[str, list[str]] = {}
        self._next_question = clock()
        self._answer: HostSet | str = ""

    @classmethod
    def of(cls, context: SourceContext) -> Allocation:
        """The source of a run: `--discovery slurm`.

        Raises:
            DiscoveryError: the process does not run in an allocation.
        """
        return cls(os.environ, context.default_slots, run_command, time.monotonic)

    async def find(self) -> HostSet:
        """The nodes that can be used.

        Raises:
            UnusableSourceError: Slurm's commands are not here.
            DiscoveryError: slurmctld does not answer.
        """
        if self._clock() >= self._next_question:
            try:
                self._answer = await self._ask()
            except SlurmError as error:
                self._answer = str(error)
            self._next_question = self._clock() + ASK_INTERVAL
        if isinstance(self._answer, str):
            raise DiscoveryError(self._answer)
        return self._answer

    async def _ask(self) -> HostSet:
        if not self._slots:
            try:
                names = await self._names(self._at_start)  # asks no daemon
            except SlurmError as error:
                raise UnusableSourceError(str(error)) from error
            gpus = await self._gpus.find()
            self._slots = slots_by_node(self._environment, names, self._default_slots, gpus)
        # With --no-kill, Slurm takes a node that has failed out of the job, and the job continues.
        listed = await self._run(("squeue", "--noheader", "--states=all", f"--jobs={self._job}", "--format=%A|%N"))
        if not (nodes := nodes_of(listed, self._job)):
            return HostSet()
        printed = await self._run(("sinfo", "--Node", "--noheader", f"--nodes={nodes}", "--format=%N|%T"))
        states = states_of_nodes(printed)
        hosts = []
        for name in await self._names(nodes):
            found, slots = states.get(name, set()), self._slots.get(name, self._default_slots)
            if slots and not found & FAILED_STATES:
                hosts.append(Host(name, slots, LEAVING if found & LEAVING_STATES else None))
        return HostSet(tuple(hosts))

    async def _names(self, nodes: str) -> list[str]:
        """The nodes one by one. The text is mostly that of the last time, and as a rule that of the start."""
        if nodes not in self._expanded:
            self._expanded = {nodes: (await self._run(("scontrol", "show", "hostnames", nodes))).split()}
        return self._expanded[nodes]
