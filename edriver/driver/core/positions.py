"""Replicas by position, as elastic mode has them: there are as many as workers of the rarest position. Pure.

A host with at least as many slots as a replica has workers has all positions in turn, from slot 0. The slots of a
smaller one are a part of a replica: which part is chosen when its first worker is started. Slots that fit into no
replica in this way (the fifth of a host, if S is 2; both of a host with two, if S is 3) have no position.

With S = 1 there is one position, and each worker is a replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from edriver.driver.core.replicas import fitting_slots


def in_whole_replicas(counts: Sequence[int]) -> int:
    """How many workers make up whole replicas, of so many at each position."""
    return min(counts) * len(counts)


def in_turn(size: int, fitting: int, taken: Mapping[int, int]) -> list[int]:
    """The positions of a host's slots, all in turn. Workers that have others, of a time when the host had fewer slots,
    keep them: other slots have what is then missing.

    Args:
        size: the number of workers in a replica.
        fitting: the number of slots, a multiple of that.
        taken: the positions of the workers, by slot.
    """
    pattern = [slot % size for slot in range(fitting)]
    if all(position == slot % size for slot, position in taken.items()):
        return pattern
    missing = Counter(pattern)
    missing.subtract(taken.values())
    left = list(chain.from_iterable([position] * max(0, missing[position]) for position in range(size)))
    for slot in range(fitting):
        if slot in taken:
            pattern[slot] = taken[slot]
        elif pattern[slot] in left:
            left.remove(pattern[slot])
        else:
            pattern[slot] = -1
    return [left.pop(0) if position < 0 else position for position in pattern]


def first_position(size: int, slots: int, coverage: Sequence[int]) -> int:
    """The position of slot 0 of a host with fewer slots than a replica has workers: where there are the fewest.

    Args:
        size: the number of workers in a replica, which hosts with so many slots make up.
        slots: the number of the host's slots.
        coverage: the number of workers of each position.
    """
    return min(range(0, size, slots), key=lambda first: max(coverage[first : first + slots]))


def slots_in_replicas(size: int, hosts: Iterable[int]) -> int:
    """How many slots of unused hosts make up whole replicas.

    Args:
        size: the number of workers in a replica.
        hosts: the number of slots of each host.
    """
    coverage = [0] * size
    for slots in hosts:
        fitting = fitting_slots(size, slots)
        first = first_position(size, slots, coverage) if 0 < fitting < size else 0
        for slot in range(fitting):
            coverage[(first + slot) % size] += 1
    return in_whole_replicas(coverage)


class PositionCounts:
    """How many workers there are of each position, kept up to date host by host.

    Args:
        positions: the number of positions.

    Attributes:
        live: the number of live workers that have a slot.
        ready: the number of those that are ready for a round, or in one.
    """

    def __init__(self, positions: int) -> None:
        self.live = [0] * positions
        self.ready = [0] * positions
        self._counted: dict[str, tuple[list[int], list[int]]] = {}  # what each host counts for in these two

    def note(self, host: str, live: list[int], ready: list[int]) -> None:
        """The workers of a host have these positions now."""
        before = self._counted.get(host, ([], []))
        self._counted[host] = live, ready
        for counts, was, now in zip((self.live, self.ready), before, (live, ready), strict=True):
            for position in was:
                counts[position] -= 1
            for position in now:
                counts[position] += 1

    def forget(self, host: str) -> None:
        """A host is gone."""
        self.note(host, [], [])
        del self._counted[host]
