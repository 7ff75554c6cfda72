"""What a training loop may meet: exceptions that `edriver.run` turns into the next round, and others that end it."""

from __future__ import annotations

_PUBLIC = "edriver"
"""The module of the errors that scripts catch, so that a traceback names what they write behind `except`."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name and base, which users' scripts catch
    """All members have stopped at the same boundary because the set of hosts changes; the state stays as it is.

    Args:
        skip_sync: for scripts written for Horovod, which may read it. It has no effect: the driver decides who
            receives state. False when a boundary raises the exception.

    Attributes:
        skip_sync: as given.
    """

    __module__ = _PUBLIC

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class SwallowedInterruptError(Exception):
    """The script caught an exception with which a boundary ends the round, and continued.

    This is a bug of the script. The class derives neither from the exceptions of boundaries nor from RuntimeError, so
    that the handler that caught the first exception does not catch this one.
    """

    __module__ = _PUBLIC


class PeerLostError(RuntimeError):
    """A member of this round is lost, so the results of the round's collectives are invalid.

    A boundary or a collective raises it. Inside `edriver.run` it leads to the next round; after `run` has
    returned, collectives are not elastic and the script receives it.
    """

    __module__ = _PUBLIC


class UnprovenPeerError(PeerLostError):
    """The other end of a connection did not prove that it is a member of the round; its data was not used."""


class NoRankError(RuntimeError):
    """This worker has no rank yet: ranks are assigned when a round begins."""


class CheckpointError(Exception):
    """The run cannot use its checkpoints; the message says why, and what to do.

    `edriver.run` raises it at the start of a round: another live run owns the folder, or the checkpoint that the run
    must continue from cannot be loaded. Training does not start from scratch instead.
    """

    __module__ = _PUBLIC
