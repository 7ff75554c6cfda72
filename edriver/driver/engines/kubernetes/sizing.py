"""How many agents' pods a run should have: pure.

A controller ends the pods with the highest indexes when there are to be fewer. So what can be given back is the end of
the row, up to the last pod that is used.
"""

from __future__ import annotations

from collections.abc import Iterable


def wanted_size(size: int, most: int, least: int, used: Iterable[int]) -> int:
    """The number of pods to request.

    Args:
        size: the number requested now.
        most: the maximum number that the run can use.
        least: the minimum number that it needs to train.
        used: the indexes of the pods that it uses.
    """
    if size < most:
        return most
    kept = max(used, default=-1) + 1
    return min(size, max(most, least, kept))


def hosts_for(slots: int, slots_per_host: int) -> int:
    """The number of hosts that have this many slots."""
    return -(-slots // slots_per_host)
