"""This worker's place in the current round: rank, size and their kin, with Horovod's meanings.

A script started without edriver around it is a world of one.
"""

from __future__ import annotations

import hashlib
import os

from edriver.model.plan import Assignment
from edriver.worker import context


def current() -> Assignment:
    """This worker's place in the current round (after `run` has returned: in the last one).

    Raises:
        RuntimeError: under the driver, before this worker's first round has begun: it has no rank yet.
    """
    return context.current.place.assignment


def in_round() -> bool:
    """Whether a driver has assigned this worker a place."""
    return context.current.place.in_round


def worker_seed(base: int = 0) -> int:
    """Return a seed that no other worker of the run ever has, not even a replacement.

        torch.manual_seed(edriver.worker_seed(42))

    The seed stays the same for the whole life of a worker's process, whatever its rank, and is available at any time.
    With a constant seed in the script, a newcomer would draw the same numbers as others before.

    Args:
        base: the script's seed; with the same base, the n-th worker of every run has the same seed.

    Returns:
        A number from 0 to 2**63 - 1.
    """
    text = f"{base}:{os.environ.get('EDRIVER_WORKER_ID', '0')}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def rank() -> int:
    """This worker's rank in the round, 0 to size() - 1."""
    return current().rank


def size() -> int:
    """The number of workers in the round."""
    return current().size


def local_rank() -> int:
    """This worker's rank among the members on its host, 0 to local_size() - 1."""
    return current().local_rank


def local_size() -> int:
    """The number of members on this worker's host."""
    return current().local_size


def cross_rank() -> int:
    """The index of this host among the hosts that have a member with this worker's local_rank."""
    return current().cross_rank


def cross_size() -> int:
    """The number of hosts that have a member with this worker's local_rank."""
    return current().cross_size
