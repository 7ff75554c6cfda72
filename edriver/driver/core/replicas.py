"""Replicas: which slots and workers make up whole ones. Pure. Part of the core.

A script with tensor or pipeline parallelism, or HSDP, can train at some world sizes only: those made up of whole
replicas of S workers (--replica-size S). The workers of a replica talk most to one another, so a replica lies on one
host if that has S slots, else on whole hosts that have equally many slots. Slots that cannot be in a replica in this
way (the fifth of a host, if S is 2; all of a host with 3, if S is 4) are not used. With `--replica-size host` each
host is a replica if all of its slots can be used.

A worker is started only where a whole replica can come of it: not beside a slot that rests after a failure, nor on a
host that lacks another one.

What is said here of S slots holds of a host's own number of slots where the size is WHOLE_HOSTS.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from edriver.model.settings import WHOLE_HOSTS


def replica_width(size: int, slots: int) -> int:
    """The number of workers in a replica that has workers on a host with this many slots."""
    return slots if size == WHOLE_HOSTS else size


def in_replicas(size: int, slots: int, count: int) -> int:
    """How many workers of a host can be in whole replicas, those over several hosts included.

    Args:
        size: the size of a replica.
        slots: the number of the host's slots.
        count: the number of its workers, or of slots that can be used.
    """
    width = replica_width(size, slots)
    if slots <= 0:
        return 0
    if slots >= width:
        return count // width * width
    return slots if width % slots == 0 and count >= slots else 0


def fitting_slots(size: int, slots: int) -> int:
    """How many of a host's slots, from slot 0, have a position in a replica of this size."""
    if slots >= size:
        return slots // size * size
    return slots if slots > 0 and size % slots == 0 else 0


def whole_replicas(size: int, hosts: Iterable[tuple[str, int, int]], most: float = math.inf) -> dict[str, int]:
    """How many workers of each host are in whole replicas.

    Args:
        size: the size of a replica.
        hosts: name, number of slots and number of workers of each host, in order of age.
        most: the maximum number of workers in all.

    Returns:
        The number of workers by host, in the order of their ranks: the hosts of a replica follow one another.
    """
    found = list[tuple[int, dict[str, int]]]()  # replicas of one host, or one of several hosts, with their width
    begun: dict[int, dict[str, int]] = {}  # by slots: the hosts of a replica that is not whole yet
    for name, slots, workers in hosts:
        count, width = in_replicas(size, slots, workers), replica_width(size, slots)
        if count and slots >= width:
            found.append((width, {name: count}))
        elif count:
            if slots not in begun:
                begun[slots] = {}
                found.append((width, begun[slots]))
            begun[slots][name] = count
            if sum(begun[slots].values()) == width:
                del begun[slots]
    chosen: dict[str, int] = {}
    room = most
    for width, members in found:
        count = sum(members.values())
        if count > room:
            count = int(room)
        count -= count % width
        if count:
            chosen.update(members if len(members) > 1 else dict.fromkeys(members, count))
            room -= count
    return chosen


class ReplicaCount:
    """How many workers are in whole replicas, kept up to date host by host.

    Args:
        size: the size of a replica.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._alone = 0  # workers in replicas of one host
        self._whole = Counter[int]()  # the number of whole hosts for replicas of several, by their slots
        self._counted: dict[str, tuple[int, int]] = {}  # what each host counts as: its slots if it is one of those

    def note(self, host: str, slots: int, workers: int) -> None:
        """A host has this many slots and workers now; no slots: it is gone."""
        count = in_replicas(self._size, slots, workers)
        alone = slots >= replica_width(self._size, slots)
        before, now = self._counted.get(host, (0, 0)), (count, 0) if alone else (0, count)
        if now == before:
            return
        self._counted[host] = now
        self._alone += now[0] - before[0]
        self._whole[before[1]] -= 1
        self._whole[now[1]] += 1

    def forget(self, host: str) -> None:
        """A host is gone."""
        self.note(host, 0, 0)
        self._counted.pop(host, None)

    @property
    def total(self) -> int:
        """The number of workers in whole replicas."""
        several = sum(slots * (hosts - self.unpaired(slots)) for slots, hosts in self._whole.items() if slots)
        return self._alone + several

    def unpaired(self, slots: int) -> int:
        """The number of whole hosts with this many slots that are in no whole replica, for want of others."""
        return self._whole[slots] % (self._size // slots)
