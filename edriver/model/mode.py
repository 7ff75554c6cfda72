"""What a run's script expects of the driver, as data that the core's rules read. Part of the core.

In restart mode no member survives its round. What follows from that:

* The end of a round is the end of all its processes. `abort` also orders each member stopped (SIGTERM to its group, 30
  s, SIGKILL; a silent one is killed at once), and takes it out of the round. The next round forms when all are gone: an
  old process may still be writing its checkpoint.
* No worker holds a state, so all offer "nothing". The rule that a run never starts from scratch holds nothing back:
  hosts may be replaced all at once, there is no state keeper, and a suspected worker is stopped like the others.
* Workers for all slots are started before a round forms, and it waits for those that boot, 30 s at most: one that came
  later would be another restart.
* Rank 0 is on the host that discovery names first, whatever worker is the oldest: its checkpoint may lie on its own
  disk.
* How far a checkpoint has got is not known. The same error in two rounds ends the run, unless a round between them, or
  the second one, lasted for longer than failures are remembered (Settings.failure_window, 600 s).
* Once one script has run to its end, no change of the hosts ends the round: a restart would have it make its last steps
  again, and where hosts keep coming it would never end.
* A process that ends with 0 before the others (`os._exit`) has done its part. As long as nothing fails, its slot stays
  empty; after a failure it is used again.
* A script has no boundaries, so that nothing can be said of its progress, as long as there are others that it may wait
  for. Once these have run to their end, one that waits in a collective, as the worker reports, or that neither prints
  nor uses a processor, its children included, as its agent reports, ends the round after a bound, as uneven steps do in
  elastic mode.
"""

from __future__ import annotations

import enum


class CheckpointWay(enum.Enum):
    """How a script in restart mode can be asked for a checkpoint before the members change.

    * CALL: `edriver.checkpoint_requested()` is the boundary of the round. It returns True on all ranks after the same
      step, by an agreed interrupt; at its next call, or at its end, the process reports that it has saved.
    * SIGNAL: the script has 30 s (Settings.leave_grace) to save, or less if it ends on its own.
    * NONE, as a rule. If that is so for all, they are stopped at once: by SIGTERM, for which a `torch.save` in the main
      thread is finished first (edriver/worker/restart/whole_saves.py).

    After a loss none is asked: collectives no longer work.
    """

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


class OnLoss(enum.StrEnum):
    """What a round that has lost workers is followed by, in elastic mode."""

    SHRINK = "shrink"
    """A round of those that are left; replacements join later."""

    WAIT = "wait"
    """A round of as many as before: those that are left wait for replacements, in their processes."""
