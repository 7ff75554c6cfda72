"""Process sets: some of the ranks, which call collectives among themselves.

A set outlives rounds, its group does not: `elastic.run` makes the groups anew at the start of each round. A set that
names a rank which the round does not have is void in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch.distributed as dist

from edriver.common.ids import NO_ROUND, RoundId
from edriver.horovod import basics
from edriver.horovod.errors import peer_loss_translated


class Lane(NamedTuple):
    """A group of a process set's members: collectives in one lane do not get in the way of those in another.

    Attributes:
        members: who is in it.
        number: which of the round's lanes of this set it is; 0 is the set's own group.
    """

    members: ProcessSet
    number: int = 0

    def group(self) -> dist.ProcessGroup | None:
        """Its group; None: torch's default one."""
        return self.members.group(self.number)


class ProcessSet:
    """Some of the ranks.

    Args:
        ranks: which.

    Attributes:
        ranks: the same, ascending; of the global set all.
        process_set_id: 0 for the global set; None before it is added, and once it is removed.

    Raises:
        ValueError: something else than ranks was given.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise ValueError("a ProcessSet is made of a list of ranks: there are no MPI communicators here")
        self._ranks = sorted(ranks)
        if any(not isinstance(rank, int) for rank in self._ranks):
            raise ValueError("a ProcessSet is made of a list of ranks, which are integers")
        self.process_set_id: int | None = None
        self.joined: frozenset[int] = frozenset()
        """Places in it that had called `join` when its members last met."""
        self.outstanding: Callable[[], object] | None = None
        """Concludes the agreement that its members are about to reach, if there is one: before the next begins."""
        self._groups: list[weakref.ref[dist.ProcessGroup]] = []
        """Of its lanes; those that the round forgets are gone: the global set's first one is torch's default group."""
        self._round = NO_ROUND
        self._met_in = NO_ROUND

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return list(range(basics.size())) if self.process_set_id == 0 else list(self._ranks)

    def included(self) -> bool:
        """Whether this worker is in it. Raises ValueError before it has been added."""
        return basics.rank() in self._registered()

    def rank(self) -> int:
        """This worker's place in it.

        Raises:
            ValueError: it is not in it, or the set has not been added.
        """
        if not self.included():
            raise ValueError(f"rank {basics.rank()} is not in {self}")
        return self.ranks.index(basics.rank())

    def size(self) -> int:
        """How many ranks it has. Raises ValueError before it has been added."""
        return len(self._registered())

    def group(self, lane: int = 0) -> dist.ProcessGroup | None:
        """Its group in this round; None: torch's default one.

        Args:
            lane: which of its groups.

        Raises:
            ValueError: this rank is not in it, or the set has no group in this round.
        """
        basics.require_group()
        if self.process_set_id == 0 and lane == 0:
            return None
        self.rank()
        group = self._groups[lane]() if self._round == basics.place().round_id and lane < len(self._groups) else None
        if group is None:
            raise ValueError(
                f"{self} has no group in this round: it was added when other ranks were there; add it at the start of "
                "the function that hvd.elastic.run wraps"
            )
        return group

    def begin_meeting(self) -> None:
        """See that the last agreement is concluded before the next begins; one of another round is forgotten."""
        if self._met_in != basics.place().round_id:
            self._met_in = basics.place().round_id
            self.joined, self.outstanding = frozenset(), None
        if self.outstanding is not None:
            self.outstanding()

    def open_lane(self) -> Lane:
        """Make another group of the same members, who all call this.

        Raises:
            HorovodInternalError: a member is gone.
        """
        if self._round != basics.place().round_id:
            assert self.process_set_id == 0, "others have a group by now"
            self._round, self._groups = basics.place().round_id, []
            self._groups.append(weakref.ref(_default_group()))
        with peer_loss_translated():
            group = dist.new_group(self.ranks, use_local_synchronization=True)
        self._groups.append(weakref.ref(group))
        return Lane(self, len(self._groups) - 1)

    def meet(self, round_id: RoundId) -> None:
        """Make its group; all ranks of the round call this, in the same order."""
        with peer_loss_translated():
            group = dist.new_group(self._ranks)
        member = isinstance(group, dist.ProcessGroup)
        self._round, self._groups = round_id, [weakref.ref(group)] if member else []

    def forget(self) -> None:
        """It has been removed."""
        self.process_set_id = None
        self._groups = []

    def _registered(self) -> list[int]:
        if self.process_set_id is None:
            raise ValueError(f"{self} has not been added: call hvd.add_process_set, or give it to hvd.init")
        return self.ranks

    def __str__(self) -> str:
        ranks = "all" if self.process_set_id == 0 else self._ranks
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks})"


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "there is one: see require_group"
    return group


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_sets: dict[int, ProcessSet] = {0: global_process_set}


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set; all ranks add the same ones, in the same order.

    Args:
        process_set: the set, or its ranks.

    Raises:
        ValueError: a set of these ranks is there already, or it names a rank that there is not.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if any(known.ranks == added.ranks for known in _sets.values()):
        raise ValueError(f"there is a process set of ranks {added.ranks} already")
    if not basics.is_late():
        basics.require_group()
        if not set(added.ranks) <= set(range(basics.size())):
            raise ValueError(f"a process set of ranks {added.ranks} cannot be added among {basics.size()} ranks")
        added.meet(basics.place().round_id)
    added.process_set_id = max(_sets) + 1
    _sets[added.process_set_id] = added
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set; returns whether there was one to remove. The global one stays."""
    known = process_set.process_set_id
    if not known or _sets.get(known) is not process_set:
        return False
    del _sets[known]
    process_set.forget()
    return True


def all_sets() -> list[ProcessSet]:
    """All sets that have been added, the global one first."""
    return [_sets[known] for known in sorted(_sets)]


def meet_again() -> None:
    """Make the groups of all sets that fit into this round; all ranks call this at its start."""
    for one in all_sets()[1:]:
        if one.ranks[-1:] < [basics.size()]:
            one.meet(basics.place().round_id)
