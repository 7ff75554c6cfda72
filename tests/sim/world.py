"""The whole run in one process: the real core, simulated agents, workers and network, and faults drawn from a seed.

Its parts: sim_driver.py, sim_agents.py, sim_workers.py, sim_disk.py, and fabric.py, the network between workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from edriver.model.settings import Settings
from edriver.worker.rounds.participant import Stage
from tests.sim.clockwork import Clockwork
from tests.sim.fabric import Fabric
from tests.sim.invariants import Invariants
from tests.sim.sim_agents import SimAgents
from tests.sim.sim_checkpoints import SimCheckpoints
from tests.sim.sim_disk import SimDisk
from tests.sim.sim_driver import SimDriver
from tests.sim.sim_hosts import Process
from tests.sim.sim_workers import SimWorkers
from tests.sim.trainee import Job


class World:
    """One simulated run.

    Args:
        seed: everything follows from it.
        settings: the core's.
        job: the script.
        log: takes one line per event and action, for replays; None: none are made.
    """

    agents_type = SimAgents
    workers_type = SimWorkers
    checkpoints: SimCheckpoints  # in restart mode

    def __init__(self, seed: int, settings: Settings, job: Job, log: Callable[[str], None] | None = None) -> None:
        self._log = log
        self.rng = random.Random(seed)
        self.clockwork = Clockwork()
        self.fabric = Fabric(self.clockwork, self.rng)
        self.job = job
        self.driver = SimDriver(self, seed, settings)
        self.agents = self.agents_type(self)
        self.workers = self.workers_type(self, random.Random(seed ^ 0x5E11))
        self.disk = SimDisk(self, random.Random(seed ^ 0xD15C))
        self.invariants = Invariants(self)
        self.fabric.completed_in = self.invariants.collective_completed

    def processes(self) -> list[Process]:
        """All living worker processes, oldest first."""
        found = [p for host in self.agents.hosts.values() for p in host.processes.values() if p.alive]
        return sorted(found, key=lambda p: p.worker_id)

    def members(self) -> list[Process]:
        """Those that have a place in the latest round they know of."""
        return [p for p in self.processes() if p.trainee.participant.stage in (Stage.ASSIGNED, Stage.DONE)]

    def log(self, kind: str, what: object) -> None:
        """Write a line of the replay, if there are any: most runs have none, and texts of events take long to make."""
        if self._log:
            self._log(f"{self.clockwork.now:10.4f}  {kind:6} {what}")
