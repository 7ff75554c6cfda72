"""Process sets: some of the ranks, which call collectives among themselves.

A set outlives rounds, its group does not: `elastic.run` makes the groups again at the start of each round. A set that
names a rank which the round does not have is void in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch.distributed as dist

from edriver.horovod import basics
from edriver.horovod.errors import HorovodInternalError, peer_loss_translated
from edriver.model.ids import NO_ROUND, RoundId
from edriver.worker.backend import torch_groups


@dataclass(frozen=True, slots=True)
class CollectiveLane:
    """A group of a process set's members in one round: collectives in one lane do not get in the way of another's.

    Attributes:
        ranks: the members, ascending.
        place: this worker's among them.
        number: which of the round's lanes of this set it is; 0 is the set's own group.
        find: answers with its group; None: the round has forgotten it.
        round_id: the round.
    """

    ranks: tuple[int, ...]
    place: int
    number: int
    find: Callable[[], dist.ProcessGroup | None]
    round_id: RoundId

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.ranks)

    def group(self) -> dist.ProcessGroup:
        """Its group.

        Raises:
            HorovodInternalError: the round, and with it the group, is over.
        """
        if (group := self.find()) is None:
            raise HorovodInternalError("the round in which this collective was called is over")
        return group


class Background(Protocol):
    """Runs the background operations of a set: collectives/background.py."""

    def close(self) -> None:
        """Begin nothing more: the round is over."""


class ProcessSet:
    """A subset of the ranks.

    Args:
        ranks: the ranks.

    Attributes:
        ranks: the ranks in ascending order; all of them for the global set.
        process_set_id: 0 for the global set; None before the set is added and after it is removed.

    Raises:
        ValueError: an argument is not a rank.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise ValueError("a ProcessSet is made of a list of ranks: edriver does not use MPI communicators")
        self._ranks = sorted(ranks)
        if any(not isinstance(rank, int) for rank in self._ranks):
            raise ValueError("a ProcessSet is made of a list of ranks, which are integers")
        self.process_set_id: int | None = None
        self.joined: frozenset[int] = frozenset()
        """Places in it that had called `join` when its members last met."""
        self.met = 0
        """How often its members have met in this round."""
        self._joined_at = 0
        self.background: Background | None = None
        """The background runner of this round; None until a background operation has been started."""
        self._groups: list[weakref.ref[dist.ProcessGroup]] = []
        """Of its lanes; those that the round forgets are gone: the global set's first one is torch's default group."""
        self._waits_for_nobody: weakref.ref[dist.ProcessGroup] | None = None
        self._round = NO_ROUND

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return list(range(basics.size())) if self.process_set_id == 0 else list(self._ranks)

    def included(self) -> bool:
        """Whether this worker is in it."""
        return basics.rank() in self.ranks

    def rank(self) -> int:
        """This worker's place in it.

        Raises:
            ValueError: it is not in it, or the set has not been added.
        """
        ranks = self._registered()
        if basics.rank() not in ranks:
            raise ValueError(f"rank {basics.rank()} is not a member of {self}")
        return ranks.index(basics.rank())

    def size(self) -> int:
        """How many ranks it has. Raises ValueError before it has been added."""
        return len(self._registered())

    def lane(self, number: int = 0) -> CollectiveLane:
        """One of the set's groups in this round.

        Args:
            number: the number of the group.

        Raises:
            ValueError: this rank is not in the set, or the set has no group of this number in this round.
        """
        basics.require_group()
        place = self.rank()
        self.enter_round()
        if number >= len(self._groups):
            raise ValueError(
                f"{self} has no group in this round: it was added among other ranks; add it at the start of "
                "the function that hvd.elastic.run wraps"
            )
        return CollectiveLane(tuple(self.ranks), place, number, self._groups[number], self._round)

    def group(self) -> dist.ProcessGroup:
        """The set's group in this round. Raises as `lane`, and HorovodInternalError if the group is gone."""
        return self.lane().group()

    def enter_round(self) -> None:
        """Forget what there was of another round."""
        if self._round == basics.place().round_id:
            return
        self.leave_round()
        self._round = basics.place().round_id
        if self.process_set_id == 0:
            self._groups = [weakref.ref(basics.group())]

    @property
    def round_id(self) -> RoundId:
        """The round that its groups are of."""
        return self._round

    def note_joined(self, round_id: RoundId, number: int, joined: frozenset[int]) -> None:
        """Note who had joined at a meeting. Those of one round may be concluded in another order than they began."""
        if round_id == self._round and number > self._joined_at:
            self.joined, self._joined_at = joined, number

    def leave_round(self) -> None:
        """Forget this round."""
        self.stop()
        self._round, self._groups, self._waits_for_nobody = NO_ROUND, [], None
        self.joined, self.met, self._joined_at = frozenset(), 0, 0

    def stop(self) -> None:
        """Start no more of the queued background operations."""
        background, self.background = self.background, None
        if background is not None:
            background.close()

    def prepare(self) -> None:
        """Create the lane of background operations, once in a round; all members call this.

        Raises:
            HorovodInternalError: a member is lost.
        """
        own = self.lane()
        if self._waits_for_nobody is None and own.size > 1:
            self._waits_for_nobody = weakref.ref(new_group(own))

    def background_lane(self) -> CollectiveLane | None:
        """The lane of background operations; None before it is created in this round."""
        own = self.lane()
        return None if self._waits_for_nobody is None else replace(own, number=-1, find=self._waits_for_nobody)

    def open_lane(self) -> CollectiveLane:
        """Make another group of the same members, who all call this.

        Raises:
            HorovodInternalError: a member is gone.
        """
        self._groups.append(weakref.ref(new_group(self.lane())))
        return self.lane(len(self._groups) - 1)

    def meet(self, round_id: RoundId) -> None:
        """Make its group; all ranks of the round call this, in the same order."""
        self.leave_round()
        with peer_loss_translated():
            group = dist.new_group(self._ranks)
        member = isinstance(group, dist.ProcessGroup)
        self._round, self._groups = round_id, [weakref.ref(group)] if member else []
        if member:
            self.prepare()

    def forget(self) -> None:
        """It has been removed."""
        self.leave_round()
        if self.process_set_id:
            self.process_set_id = None

    def _registered(self) -> list[int]:
        if self.process_set_id is None:
            raise ValueError(f"{self} has not been added: call hvd.add_process_set, or give it to hvd.init")
        return self.ranks

    def __str__(self) -> str:
        ranks = "all" if self.process_set_id == 0 else self._ranks
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks})"


def new_group(lane: CollectiveLane) -> dist.ProcessGroup:
    """Another group of a lane's members, who all call this.

    Raises:
        HorovodInternalError: a member is gone.
    """
    place = (lane.round_id, lane.ranks)
    number = _opened[place] = _opened.get(place, 0) + 1
    for old in [other for other in _opened if other[0] < lane.round_id]:
        _opened.pop(old, None)
    with peer_loss_translated():
        return torch_groups.named(f"edriver/{lane.round_id}/{'-'.join(map(str, lane.ranks))}/{number}", lane.ranks)


_opened: dict[tuple[RoundId, tuple[int, ...]], int] = {}
"""How many lanes have been opened in a round, by their members: all of those have opened as many, in the same order."""


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
        raise ValueError(f"a process set of ranks {added.ranks} already exists")
    if not basics.is_late():
        basics.require_group()
        if not set(added.ranks) <= set(range(basics.size())):
            raise ValueError(f"a process set of ranks {added.ranks} cannot be added among {basics.size()} ranks")
    added.process_set_id = max(_sets) + 1
    if not basics.is_late():
        try:
            added.meet(basics.place().round_id)
        except BaseException:
            added.forget()
            raise
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
    stop_all()
    global_process_set.prepare()
    for one in all_sets()[1:]:
        one.leave_round()
        if one.ranks[-1:] < [basics.size()]:
            one.meet(basics.place().round_id)


def stop_all() -> None:
    """Start no more of the queued background operations, because the round is over."""
    for one in all_sets():
        one.stop()


def forget_all() -> None:
    """Forget all sets but the global one, which starts again: hvd.shutdown."""
    for one in all_sets():
        one.forget()
        if one is not global_process_set:
            del _sets[next(known for known, added in _sets.items() if added is one)]
