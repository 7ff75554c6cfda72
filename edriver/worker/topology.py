"""This worker's place in the current round: rank, size and their kin, with Horovod's meanings.

A script started without edriver around it is a world of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator

from edriver.calls.worker_process import owner
from edriver.common.ids import RoundId
from edriver.common.store_address import StoreAddress
from edriver.worker.assignment import Assignment

SINGLE_WORKER = Assignment(
    round_id=RoundId(0, 1),
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    cross_rank=0,
    cross_size=1,
    store=StoreAddress("", 0),
    source=0,
    receivers=(),
)
"""The place of a process that no driver has started."""

NO_ASSIGNMENT = Assignment(
    round_id=RoundId(0, 0),
    rank=-1,
    size=-1,
    local_rank=-1,
    local_size=-1,
    cross_rank=-1,
    cross_size=-1,
    store=StoreAddress("", 0),
    source=-1,
    receivers=(),
    host_rank=-1,
    host_count=-1,
)
"""The assignment of a worker that skips a `run` because it came too late for it: all -1, as torch.distributed answers
a process that is not in a group. A script's `if edriver.rank() == 0` is then false."""

_assignment: Assignment | None = None
_listeners: list[Callable[[], object]] = []


def current() -> Assignment:
    """This worker's place in the current round (after `run` has returned: in the last one).

    Raises:
        RuntimeError: under the driver, before this worker's first round has begun: it has no rank yet.
    """
    if _assignment is not None:
        return _assignment
    if "EDRIVER_WORKER_ID" not in os.environ:
        return SINGLE_WORKER
    if (pid := owner()) is not None:
        raise RuntimeError(
            f"this process has no rank: the worker that has started it (process {pid}) has one, and can pass it on"
        )
    raise RuntimeError(
        "this worker has no rank yet: ranks are assigned when a round begins, so ask for them inside the function "
        "that edriver.run wraps, or after it has returned"
    )


def in_round() -> bool:
    """Whether a driver has given this worker a place."""
    return _assignment is not None


def enter(assignment: Assignment) -> None:
    """Take a place: called by `run` at the start of each round."""
    global _assignment
    _assignment = assignment
    for listener in _listeners:
        listener()


def listen(listener: Callable[[], object]) -> None:
    """Have this called whenever a place has been taken, on the thread that takes it."""
    _listeners.append(listener)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Be a world of one, before this worker's first round."""
    global _assignment
    before, _assignment = _assignment, SINGLE_WORKER
    try:
        yield
    finally:
        _assignment = before


def leave() -> None:
    """Forget the place, as if no round had begun (tests)."""
    global _assignment
    _assignment = None


def worker_seed(base: int = 0) -> int:
    """A seed that no other worker of the run ever has, a replacement included: `torch.manual_seed(worker_seed(42))`.

    It is the same for the whole life of a worker's process, independently of its rank, and available at any time. A
    seed of the script's own is the same in all workers, so that a newcomer would draw the numbers that others have
    drawn.

    Args:
        base: the script's own seed; with the same one, the n-th worker of every run has the same seed.

    Returns:
        A number from 0 to 2**63 - 1.
    """
    text = f"{base}:{os.environ.get('EDRIVER_WORKER_ID', '0')}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def rank() -> int:
    """This worker's rank in the round, 0 to size() - 1."""
    return current().rank


def size() -> int:
    """How many workers the round has."""
    return current().size


def local_rank() -> int:
    """This worker's rank among the members on its host, 0 to local_size() - 1."""
    return current().local_rank


def local_size() -> int:
    """How many members this worker's host has."""
    return current().local_size


def cross_rank() -> int:
    """This host's place among the hosts that have a member with this local_rank."""
    return current().cross_rank


def cross_size() -> int:
    """How many hosts have a member with this local_rank."""
    return current().cross_size
