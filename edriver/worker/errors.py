"""What a training loop may meet: exceptions that `edriver.run` turns into the next round, and others that end it."""

from __future__ import annotations

_PUBLIC = "edriver"
"""The module of the errors that scripts catch, so that a traceback names what they write behind `except`."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name and base, which users' scripts catch
    """All members have stopped at the same boundary because the set of hosts changes; state is kept as it is.

    Args:
        skip_sync: for scripts written for Horovod, which may look at it; it has no effect: the driver decides who
            receives state. False in what a boundary raises.

    Attributes:
        skip_sync: the same.
    """

    __module__ = _PUBLIC

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class SwallowedInterruptError(Exception):
    """The script caught an exception of a boundary that was to lead out of the round, and went on.

    A mistake of the script: it is none of the two others, and no RuntimeError, so that it is reported and not caught
    in the same way.
    """

    __module__ = _PUBLIC


class PeerLostError(RuntimeError):
    """A member of this round is lost, so the results of its collectives are void.

    Raised at a boundary or out of a collective. Inside `edriver.run` it leads to the next round; after `run` has
    returned, collectives are not elastic and it reaches the script.
    """

    __module__ = _PUBLIC


class UnprovenPeerError(PeerLostError):
    """The other end of a connection of the round did not prove that it is a member: nothing that it sent was used."""


class CheckpointError(Exception):
    """The run cannot use its checkpoints; the message says why, and what to do.

    Raised at the start of a round, out of `edriver.run`: another run that lives owns the folder, or no checkpoint that
    the run must continue from can be loaded. Training does not begin from scratch instead.
    """

    __module__ = _PUBLIC
