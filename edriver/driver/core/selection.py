"""Who should be in a round, and with which rank. Pure: when to act on it is decided elsewhere.

Rank 0 is the oldest holder of the highest version. Where none has trained in this `run` call, it is the oldest worker
that can load the newest checkpoint, if there is one. Its host comes first, then hosts by the age of their oldest
survivor; within a host survivors come by age, then newcomers. Ranks of one host are contiguous.

Workers that have had a rank are older than those that have not, and keep their order: rank 0 does not move while it
lives and holds the state. Others are as old as their processes. In a run's first round the order of discovery and of
the slots takes the place of age.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate, RoundPlan, Seat
from edriver.model.records import OfferKind


def highest_version(candidates: Iterable[Candidate]) -> Version:
    """The highest version that any candidate offers."""
    return max((c.version for c in candidates), default=NO_VERSION)


def newest_checkpoint(candidates: Iterable[Candidate]) -> int:
    """The steps of the newest checkpoint that a candidate can load; 0: none can, or it is not ahead of what one holds.

    Those that hold the state of the call before have looked, too, and say so of checkpoints that are ahead of it alone.
    """
    candidates = tuple(candidates)
    best = highest_version(candidates)
    if best != NO_VERSION and not any(c.checkpoint for c in candidates if c.reaches(best)):
        return 0
    return max((c.checkpoint for c in candidates), default=0)


# ---- who ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """The members that a round would have if it formed now.

    Attributes:
        version: the highest version that any waiting worker offers.
        members: the candidates that have a slot, at most max_np of them.
        state_keeper: a holder of that version without a slot, kept because no member holds the version: it is rank 0
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


def select(
    candidates: Sequence[Candidate],
    placed: Collection[int],
    max_np: int,
    leaving: Collection[int] = (),
    before: int = 0,
) -> Selection:
    """Choose a round's members among the workers that wait.

    If there are more than max_np, the youngest are left out; holders of the highest version come before other
    survivors, and those before newcomers, of which those come first that can load the newest checkpoint.

    Args:
        candidates: the waiting workers.
        placed: worker_ids that have a slot now.
        max_np: maximum number of members.
        leaving: worker_ids that stay while their replacements get ready: they fill the round up to its size before.
        before: that size.
    """
    best = highest_version(candidates)
    ordered = sorted(candidates, key=lambda c: (not c.reaches(best), c.version == NO_VERSION, -c.checkpoint, c.age))
    staying = [c for c in ordered if c.worker_id in placed][:max_np]
    room = still_needed(len(staying), before, max_np)
    members = (*staying, *[c for c in ordered if c.worker_id in leaving][:room])
    if best == NO_VERSION or any(c.reaches(best) for c in members):
        return Selection(best, members, state_keeper=None)
    return Selection(best, members, state_keeper=ordered[0])


@dataclass(frozen=True, slots=True)
class Prospect:
    """A summary of a Selection that does not require a scan of the workers.

    Attributes:
        version: see Selection.
        members: the number of members.
        survivors: the number of members that hold a state.
        keeper: whether there is a state keeper.
        checkpoint: see Selection.
        waiting: the number of workers to choose from.
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


def still_needed(ready: int, before: int, max_np: int) -> int:
    """The number of workers with drained slots that a round keeps, so that it is no smaller than before.

    Args:
        ready: the number of its members with a slot.
        before: its size before.
        max_np: maximum number of members.
    """
    return max(0, min(before, max_np) - ready)


def prospect(offers: Mapping[OfferKind, int], max_np: int, before: int = 0) -> Prospect:
    """What `select` would choose among workers that make these offers; the arguments as there."""
    best = max((kind.version for kind in offers), default=NO_VERSION)
    ordered = sorted(offers, key=lambda kind: (not kind.reaches(best), kind.version == NO_VERSION, -kind.checkpoint))
    chosen = _fill([kind for kind in ordered if kind.placed], offers, max_np)
    room = still_needed(sum(count for _, count in chosen), before, max_np)
    chosen += _fill([kind for kind in ordered if kind.leaving], offers, room)
    keeper = best != NO_VERSION and not any(kind.reaches(best) for kind, _ in chosen)
    kinds = [kind for kind, _ in chosen] + ordered[:1] * keeper
    holds = best == NO_VERSION or any(kind.checkpoint for kind in kinds if kind.reaches(best))
    return Prospect(
        version=best,
        members=sum(count for _, count in chosen),
        survivors=sum(count for kind, count in chosen if kind.version != NO_VERSION),
        keeper=keeper,
        checkpoint=max((kind.checkpoint for kind in kinds), default=0) if holds else 0,
        waiting=sum(offers.values()),
    )


def _fill(kinds: Iterable[OfferKind], offers: Mapping[OfferKind, int], room: int) -> list[tuple[OfferKind, int]]:
    """The first workers of these kinds, as many as there is room for."""
    chosen = list[tuple[OfferKind, int]]()
    for kind in kinds:
        if room > 0:
            chosen.append((kind, min(offers[kind], room)))
            room -= chosen[-1][1]
    return chosen


def wanted_members(
    members: Collection[int],
    newcomers: Iterable[int],
    placed: Collection[int],
    max_np: int,
    keeps_state: bool = True,
    leaving: Collection[int] = (),
) -> set[int]:
    """The members that a running round should have: those that still have a slot, then newcomers that are ready.

    Members that are `leaving` stay as long as there would be fewer members than now without them. If no member has a
    place any more, the oldest stays where members hold the state, so that it is held.
    """
    staying = sorted(w for w in members if w in placed)[:max_np]
    joining = sorted(w for w in newcomers if w in placed)[: max_np - len(staying)]
    still = sorted(w for w in members if w in leaving)[
        : still_needed(len(staying) + len(joining), len(members), max_np)
    ]
    state_keeper = [] if staying or still or not keeps_state else [min(members)]
    return {*staying, *joining, *still, *state_keeper}


# ---- with which rank ------------------------------------------------------------------------------------------


def in_order_of_rank(candidates: Sequence[Candidate], checkpoint: int = 0) -> list[Candidate]:
    """The candidates in the order of the ranks they get; see the module's text for the rule.

    Args:
        candidates: a round's members.
        checkpoint: the steps of the checkpoint that rank 0 is to load; 0: none.
    """
    best = highest_version(candidates)
    able = [c for c in candidates if (c.checkpoint == checkpoint if checkpoint else c.reaches(best))]
    first = min(able, key=lambda c: c.age)

    def newcomer(c: Candidate) -> bool:
        return c.version == NO_VERSION

    by_host: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_host.setdefault(candidate.host, []).append(candidate)
    for group in by_host.values():
        group.sort(key=lambda c: (c is not first, newcomer(c), c.age))
    hosts = sorted(by_host.values(), key=lambda group: (group[0] is not first, newcomer(group[0]), group[0].age))
    return [candidate for group in hosts for candidate in group]


def plan_round(
    round_id: RoundId, ordinal: int, candidates: Sequence[Candidate], first: bool, failures: int = 0
) -> RoundPlan:
    """Assign all ranks at once.

    Args:
        round_id: the round's id.
        ordinal: the number of the script's `run` call that it belongs to.
        candidates: its members.
        first: whether the members' states have not been made equal yet, as before the call's first sync: then all
            but rank 0 receive state, and rank 0 loads the newest checkpoint if any member can. Otherwise those that do
            not reach the highest version receive.
        failures: the number of earlier rounds that ended by a failure.
    """
    checkpoint = newest_checkpoint(candidates) if first else 0
    ordered = in_order_of_rank(candidates, checkpoint)
    best = highest_version(candidates)
    local_sizes: dict[str, int] = {}
    for candidate in ordered:
        local_sizes[candidate.host] = local_sizes.get(candidate.host, 0) + 1
    local_ranks: dict[str, int] = dict.fromkeys(local_sizes, 0)
    hosts_with: dict[int, int] = {}
    host_ranks = {host: number for number, host in enumerate(local_sizes)}
    places = []
    for candidate in ordered:
        local_rank = local_ranks[candidate.host]
        local_ranks[candidate.host] += 1
        cross_rank = hosts_with.get(local_rank, 0)
        hosts_with[local_rank] = cross_rank + 1
        places.append((candidate, local_rank, cross_rank))
    seats = tuple(
        Seat(
            worker_id=candidate.worker_id,
            host=candidate.host,
            slot=candidate.slot,
            rank=rank,
            local_rank=local_rank,
            local_size=local_sizes[candidate.host],
            cross_rank=cross_rank,
            cross_size=hosts_with[local_rank],
            host_rank=host_ranks[candidate.host],
            host_count=len(host_ranks),
        )
        for rank, (candidate, local_rank, cross_rank) in enumerate(places)
    )
    receivers = tuple(rank for rank, c in enumerate(ordered) if rank > 0 and (first or not c.reaches(best)))
    return RoundPlan(
        round_id=round_id,
        ordinal=ordinal,
        version=best,
        seats=seats,
        store=ordered[0].store,
        receivers=receivers,
        first_sync=first,
        checkpoint=checkpoint,
        failures=failures,
    )
