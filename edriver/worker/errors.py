"""What a training loop may meet: exceptions that `edriver.run` turns into the next round, and others that end it."""

from __future__ import annotations


class HostsUpdatedInterrupt(Exception):  # noqa: N818  Horovod's name, which users' scripts catch
    """All members have stopped at the same boundary because the set of hosts changes; state is kept as it is.

    Attributes:
        skip_sync: always False: who receives state is decided by the driver, not by local opinion. Kept for scripts
            written for Horovod.
    """

    skip_sync = False


class SwallowedInterruptError(Exception):
    """The script caught an exception of a boundary that was to lead out of the round, and went on.

    A mistake of the script: it is none of the two others, and no RuntimeError, so that it is reported and not caught
    in the same way.
    """


class PeerLostError(RuntimeError):
    """A member of this round is lost, so the results of its collectives are void.

    Raised at a boundary or out of a collective. Inside `edriver.run` it leads to the next round; after `run` has
    returned, collectives are not elastic and it reaches the script.
    """


class UnprovenPeerError(PeerLostError):
    """The other end of a connection of the round did not prove that it is a member: nothing that it sent was used."""


class CheckpointError(Exception):
    """No checkpoint can be loaded, though the run is to go on from one: says why, and what can be done."""
