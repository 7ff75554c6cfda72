"""Who should be in a round. Pure: when to act on it is decided elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edriver.common.ids import NO_VERSION, Version
from edriver.driver.core.roster import OfferKind
from edriver.driver.core.rounds.ranks import Candidate, highest_version, newest_checkpoint


@dataclass(frozen=True, slots=True)
class Selection:
    """The members that a round would have if it formed now.

    Attributes:
        version: the highest version that any waiting worker offers.
        members: the candidates that have a slot, at most max_np of them.
        state_keeper: a holder of that version without a slot of its own, kept because no member holds it: it is rank 0
            until the members are synced, counts neither for min_np nor for max_np, and then leaves.
    """

    version: Version
    members: tuple[Candidate, ...]
    state_keeper: Candidate | None

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Members and state keeper."""
        return self.members if self.state_keeper is None else (*self.members, self.state_keeper)

    @property
    def checkpoint(self) -> int:
        """The steps of the newest checkpoint that one of them can load; 0: none can."""
        return newest_checkpoint(self.all)


def select(candidates: Sequence[Candidate], fitting: Collection[int], max_np: int) -> Selection:
    """Choose a round's members among the workers that wait.

    If there are more than max_np, the youngest are left out; holders of the highest version come before other
    survivors, and those before newcomers, of which those come first that can load the newest checkpoint.

    Args:
        candidates: the waiting workers.
        fitting: worker_ids that have a slot now.
        max_np: maximum number of members.
    """
    best = highest_version(candidates)
    ordered = sorted(candidates, key=lambda c: (c.version != best, c.version == NO_VERSION, -c.checkpoint, c.age))
    members = tuple([c for c in ordered if c.worker_id in fitting][:max_np])
    if best == NO_VERSION or highest_version(members) == best:
        return Selection(best, members, state_keeper=None)
    return Selection(best, members, state_keeper=ordered[0])


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is known of a Selection without a look at each worker.

    Attributes:
        version: as there.
        members: how many there are,
        survivors: and how many of them hold a state.
        keeper: whether there is a state keeper.
        checkpoint: as there.
        waiting: how many workers there are to choose from.
    """

    version: Version
    members: int
    survivors: int
    keeper: bool
    checkpoint: int
    waiting: int

    @property
    def size(self) -> int:
        """Number of members and state keeper."""
        return self.members + self.keeper


def prospect(offers: Mapping[OfferKind, int], max_np: int) -> Prospect:
    """What `select` would choose among workers that make these offers; `max_np` as there."""
    best = max((kind.version for kind in offers), default=NO_VERSION)
    ordered = sorted(offers, key=lambda kind: (kind.version != best, kind.version == NO_VERSION, -kind.checkpoint))
    room, chosen = max_np, list[tuple[OfferKind, int]]()
    for kind in ordered:
        if kind.fits and room > 0:
            chosen.append((kind, min(offers[kind], room)))
            room -= chosen[-1][1]
    keeper = best != NO_VERSION and all(kind.version != best for kind, _ in chosen)
    kinds = [kind for kind, _ in chosen] + ordered[:1] * keeper
    holds = best == NO_VERSION or any(kind.checkpoint for kind in kinds if kind.version == best)
    return Prospect(
        version=best,
        members=sum(count for _, count in chosen),
        survivors=sum(count for kind, count in chosen if kind.version != NO_VERSION),
        keeper=keeper,
        checkpoint=max((kind.checkpoint for kind in kinds), default=0) if holds else 0,
        waiting=sum(offers.values()),
    )


def wanted_members(
    members: Iterable[int], newcomers: Iterable[int], fitting: Collection[int], max_np: int, keeps_state: bool = True
) -> set[int]:
    """The members that a running round should have: those that still have a slot, then newcomers that are ready.

    If no member has a slot any more, the oldest stays where members hold the state, so that it is held.
    """
    staying = sorted(w for w in members if w in fitting)[:max_np]
    joining = sorted(w for w in newcomers if w in fitting)[: max_np - len(staying)]
    state_keeper = [] if staying or not keeps_state else [min(members)]
    return {*staying, *joining, *state_keeper}
