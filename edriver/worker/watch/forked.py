"""What a forked child of a worker must leave alone: connections that it shares with its parent.

A child that ends by `sys.exit`, or by an exception, finalizes the interpreter as its parent would: it runs the hooks
that it has inherited, and destroys gRPC's server and torch's process groups. Those take their connections out of epoll
sets and shut them down, which the parent shares, and wait for threads that no child has. Data loaders are spared that,
because multiprocessing ends its processes by os._exit.

So a child keeps what it has inherited of these for good: what is never destroyed cannot do any harm. Nor does its
garbage collector look at anything that it has inherited. A lost round's group may be part of the garbage: the traceback
of the lost collective refers to a DistributedDataParallel, and that to the group, whose destructor would wait for ever,
in a data loader as well.

A child does not hold the worker's life lock either, and takes no part in rounds: an exception in it is its own.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable

from edriver.worker.backend.interpreter import never_destroy

_keepers: list[Callable[[], Iterable[object]]] = []


def keep_in_children(shared: Callable[[], Iterable[object]]) -> None:
    """Have no forked child destroy certain objects.

    Args:
        shared: called in each child right after the fork: tells the objects. It must take no lock.
    """
    if not _keepers:
        os.register_at_fork(after_in_child=_keep)
    _keepers.append(shared)


def _keep() -> None:
    gc.freeze()
    for shared in _keepers:
        for kept in shared():
            never_destroy(kept)


class CreatorProcess:
    """The process that has made something, as against a child that inherited it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._pid
