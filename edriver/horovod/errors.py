"""What the collectives raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.errors import PeerLostError

_PUBLIC = "edriver.horovod"
"""The module of the errors that scripts catch, so that a traceback names what they write behind `except`."""


class HorovodInternalError(PeerLostError):
    """A collective failed because a member is gone. `elastic.run` catches it and continues from the last commit."""

    __module__ = _PUBLIC


class MismatchError(RuntimeError):
    """The members did not call the same collective, or not with matching tensors. It names the ranks and both calls."""

    __module__ = _PUBLIC


@contextmanager
def peer_loss_translated() -> Iterator[None]:
    """Raise torch's errors of broken connections as HorovodInternalError; all others pass.

    Raises:
        HorovodInternalError: a member is gone.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, PeerLostError) or not looks_like_peer_loss(error):
            raise
        raise HorovodInternalError(f"a collective failed because a member is gone: {error}") from error
