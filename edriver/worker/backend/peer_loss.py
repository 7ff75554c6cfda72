"""Telling a lost peer from the user's own exception: torch has no exception type for the former.

The texts were gathered on torch 2.13 by killing and stopping a peer inside each collective, inside DDP's forward and
backward passes, while groups were built, and by severing. If a text changes, a loss that is noticed
before the round has been aborted counts as the script's own exception: its worker ends with that traceback, and is
replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist

from edriver.worker.errors import PeerLostError

_GLOO_MARKS = ("gloo/", "monitoredBarrier")
"""Gloo's errors begin with the source file that raised them; monitored_barrier's name the barrier."""

_CALLER_FAULT_MARK = "enforce fail"
"""Gloo's assertions: the caller's mistake (unequal shapes, a bad interface name), not a loss."""


def looks_like_peer_loss(error: BaseException) -> bool:
    """Whether this exception, or one that it was raised from or while handling, means that a peer is lost.

    True for PeerLostError, the family of torch.distributed.DistError (store and network), and the RuntimeErrors of
    Gloo's connections: closed or reset by the peer, severed here, timed out. False for everything else, such as a
    RuntimeError of unequal shapes or of a data loader's worker that died.
    """
    return any(_is_peer_loss(link) for link in _chain(error))


def _is_peer_loss(error: BaseException) -> bool:
    if isinstance(error, PeerLostError | dist.DistError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(mark in text for mark in _GLOO_MARKS) and _CALLER_FAULT_MARK not in text


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it. `raise ... from None` hides the context from readers, not from us."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        links += [link.__cause__, link.__context__]
