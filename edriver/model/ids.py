"""Round ids and versions: how rounds are named, and how far a run's state has got.

Both are compared as tuples. A version names the round in which its last boundary was passed before it counts
boundaries, as Raft compares the last log entry's term before its index: counts from different histories never tie.

The highest version among living workers is right even if a single one has reached it: a worker that has finished all
buckets of a step holds every rank's contribution.
"""

from __future__ import annotations

from typing import NamedTuple


class RoundId(NamedTuple):
    """One membership with fixed ranks. Only grows within a run.

    Attributes:
        incarnation: which start of the driver made the round; a restarted driver counts on from here.
        n: the round's number within that incarnation, from 1.
    """

    incarnation: int
    n: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.n}"


class Version(NamedTuple):
    """The progress of a state: equal versions mean equal state.

    Attributes:
        round_id: the round in which the last boundary was passed (or whose sync was completed).
        boundaries: the number of boundaries passed in that round.
    """

    round_id: RoundId
    boundaries: int

    def __str__(self) -> str:
        return f"{self.round_id}:{self.boundaries}"


NO_ROUND = RoundId(0, 0)
"""Older than every round."""

NO_VERSION = Version(NO_ROUND, 0)
"""What a worker offers that was never synced: it holds nothing and always receives."""
