"""Handles of collectives that are under way, and the one place in which those are waited for.

A worker tells a thread that waits for other members from one that is busy by its innermost Python frame
(edriver/worker/watch/stuck.py), which is one of this file's then.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist

from edriver.horovod.errors import peer_loss_translated


def wait(work: dist.Work | None) -> None:
    """Wait for a collective.

    Raises:
        HorovodInternalError: a member is gone.
    """
    if work is not None:
        with peer_loss_translated():
            work.wait()


def wait_for(lock: threading.Lock) -> None:
    """Wait until another thread, which waits for other members, has released a lock."""
    lock.acquire()
    lock.release()


class UnderWay(Protocol):
    """The operation behind a handle."""

    def done(self) -> bool:
        """Whether waiting would take no time."""

    def result(self) -> Any:
        """Wait for it; returns its result."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective that has begun.

    Attributes:
        works: the pending works to wait for.
        finish: returns the result, once all works are complete.
    """

    works: Sequence[dist.Work | None]
    finish: Callable[[], Any]

    def done(self) -> bool:
        """Whether waiting would take no time."""
        return all(work is None or work.is_completed() for work in self.works)

    def result(self) -> Any:
        """Wait for it; returns its result. Raises HorovodInternalError where a member is gone."""
        for work in self.works:
            wait(work)
        return self.finish()


_pending: dict[int, UnderWay] = {}
_numbers = itertools.count(1)


def handle_of(pending: UnderWay) -> int:
    """A handle for a collective."""
    number = next(_numbers)
    _pending[number] = pending
    return number


def forget_all() -> None:
    """Forget all handles: their round is over."""
    _pending.clear()


def poll(handle: int) -> bool:
    """Whether a collective is complete or has failed, so that `synchronize` would not wait.

    Raises:
        ValueError: the handle is unknown, or its result has been returned already.
    """
    if handle not in _pending:
        raise ValueError(f"there is no handle {handle}: its result has been taken, or its round is over")
    return _pending[handle].done()


def synchronize(handle: int) -> Any:
    """Wait for a collective; returns its result, and None where that has been taken.

    Raises:
        MismatchError: the members called different things; names the ranks, types and shapes.
        ValueError: the call cannot be, on any member.
        HorovodInternalError: a member is gone.
    """
    pending = _pending.pop(handle, None)
    return None if pending is None else pending.result()
