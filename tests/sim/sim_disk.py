"""The disk to which the workers of a simulated run write their checkpoints."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.sim.trainee import Model

if TYPE_CHECKING:
    from tests.sim.world import World


class SimDisk:
    """All checkpoints that are whole.

    Args:
        world: the rest of the run.
        times: decides how long it takes to write one.
    """

    def __init__(self, world: World, times: random.Random) -> None:
        self._world = world
        self._times = times
        self._written: list[Model] = []

    def write(self, worker_id: int, model: Model) -> None:
        """A worker begins to write a checkpoint."""

        def written() -> None:
            if any(process.worker_id == worker_id for process in self._world.processes()):
                self._world.log("disk", f"worker {worker_id} has written step {model.steps}")
                self._written.append(model)

        self._world.clockwork.after(self._times.uniform(0.0, 1.0), written)

    def newest(self) -> Model | None:
        """The newest checkpoint."""
        return max(self._written, key=lambda model: model.steps, default=None)
