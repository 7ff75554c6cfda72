"""What a training loop may feel: two exceptions that `edriver.run` turns into the next round."""

from __future__ import annotations


class HostsUpdatedInterrupt(Exception):  # noqa: N818  Horovod's name, which users' scripts catch
    """All members have stopped at the same boundary because the set of hosts changes; state is kept as it is.

    Attributes:
        skip_sync: always False: who receives state is decided by the driver, not by local opinion. Kept for scripts
            written for Horovod.
    """

    skip_sync = False


class PeerLostError(RuntimeError):
    """A member of this round is gone, so what its collectives were computing is void.

    Raised at a boundary or out of a collective. Inside `edriver.run` it leads to the next round; after `run` has
    returned, collectives are not elastic and it reaches the script.
    """
