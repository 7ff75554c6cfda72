"""The disk to which the workers of a simulated run write their checkpoints."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
        self._written: dict[tuple[int, int], dict[int, Model]] = {}

    def write(self, worker_id: int, model: Model, position: int) -> None:
        """A worker begins to write its position's part of a checkpoint, of which there is one for each step and
        history.
        """

        def written() -> None:
            if any(process.worker_id == worker_id for process in self._world.processes()):
                self._world.log("disk", f"worker {worker_id} has written step {model.steps}")
                self._written.setdefault((model.steps, model.chain), {})[position] = model

        self._world.clockwork.after(self._times.uniform(0.0, 1.0), written)

    def newest(self, position: int = 0) -> Model | None:
        """A position's part of the newest checkpoint that has the parts of all positions."""
        return max(self._whole(position), key=lambda model: model.steps, default=None)

    def _whole(self, position: int) -> Iterator[Model]:
        size = self._world.job.replica_size
        return (parts[position] for parts in self._written.values() if len(parts) == size)
