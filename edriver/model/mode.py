"""What a run's script expects of the driver, as data that the core's rules read. Part of the core."""

from __future__ import annotations

import enum


class CheckpointWay(enum.Enum):
    """How a script in restart mode can be asked for a checkpoint before the members change."""

    NONE = "none"
    SIGNAL = "signal"  # it handles SIGUSR1; when it has saved is known only if it ends then
    CALL = "call"  # it calls edriver.checkpoint_requested, which is the round's boundary


class Mode(enum.Enum):
    """How a script survives changes of its workers (docs/architecture.md, "Restart mode")."""

    ELASTIC = "elastic"  # it calls edriver.run: its processes outlive their rounds, and hold the state
    RESTART = "restart"  # new processes run it from the beginning in every round; it loads its own checkpoint

    @property
    def members_survive(self) -> bool:
        """Whether a member outlives its round.

        Where none does, a round that is over has every process of it stopped, the next one forms once all are gone, and
        no worker holds a state: no loss ends the run, and no worker is kept without a slot.
        """
        return self is Mode.ELASTIC
