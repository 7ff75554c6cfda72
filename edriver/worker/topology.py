"""This worker's place in the current round: rank, size and their kin, with Horovod's meanings.

A script started without edriver around it is a world of one.
"""

from __future__ import annotations

import os

from edriver.common.ids import RoundId
from edriver.common.store_address import StoreAddress
from edriver.worker.assignment import Assignment

ALONE = Assignment(
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

NOWHERE = Assignment(
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
)
"""The place of a worker that was told to skip a `run` it came too late for: all -1, as torch.distributed answers
a process that is not in a group. A script's `if edriver.rank() == 0` is then false."""

_place: Assignment | None = None


def current() -> Assignment:
    """This worker's place in the current round (after `run` has returned: in the last one).

    Raises:
        RuntimeError: under the driver, before this worker's first round has begun: it has no rank yet.
    """
    if _place is not None:
        return _place
    if "EDRIVER_WORKER_ID" not in os.environ:
        return ALONE
    raise RuntimeError(
        "this worker has no rank yet: ranks are assigned when a round begins, so ask for them inside the function "
        "that edriver.run wraps, or after it has returned"
    )


def enter(place: Assignment) -> None:
    """Take a place: called by `run` at the start of each round."""
    global _place
    _place = place


def leave() -> None:
    """Forget the place, as if no round had begun (tests)."""
    global _place
    _place = None


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
