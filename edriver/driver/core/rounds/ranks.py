"""Who gets which rank: a pure function of the members and what they hold.

Rank 0 is the oldest holder of the highest version. Where none has trained in this `run` call, it is the oldest worker
that can load the newest checkpoint, if there is one. Its host comes first, then hosts by the age of their oldest
survivor; within a host survivors come by age, then newcomers. Ranks of one host are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edriver.common.ids import NO_VERSION, RoundId, Version
from edriver.common.store_address import StoreAddress


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting worker, as far as its rank depends on it.

    Attributes:
        worker_id: grows with every worker started, so it is also the order of age.
        host: its host's name.
        slot: its place on the host.
        version: what it offers.
        store: where its store listens.
        checkpoint: the steps of the newest checkpoint that it can load; 0: there is none, or it holds state.
        place: what goes before age where no worker is older than its round: its host's place in discovery's order, and
            its slot. Rank 0 then stays where its checkpoint is.
    """

    worker_id: int
    host: str
    slot: int
    version: Version
    store: StoreAddress
    checkpoint: int = 0
    place: tuple[int, int] = (0, 0)

    @property
    def age(self) -> tuple[tuple[int, int], int]:
        """The oldest is the smallest."""
        return self.place, self.worker_id


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place in a round; ranks with Horovod's meanings, and its host's place among the round's hosts."""

    worker_id: int
    host: str
    slot: int
    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host_rank: int = 0
    host_count: int = 1


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A round as the driver assigns it. As an action: begin it; every member learns its place.

    Attributes:
        round_id: the round.
        ordinal: which `run` call of the script it belongs to.
        version: the highest version offered: what rank 0 holds.
        seats: the members in order of rank.
        store: where rank 0's store listens.
        receivers: the ranks that receive rank 0's state, ascending.
        checkpoint: the steps of the checkpoint that rank 0 loads first; 0: it loads none.
        failures: how many rounds have ended by a failure before it.
        steps_lost: steps beyond that version that its holders had made, and cannot go back to,
        torn: and why; empty: that has been reported already.
        fallback_size: with how many workers, fewer than these, the run goes on if the script fails with so many; 0:
            with none, or it has trained with so many before.
        guarded: whether its members name their connections to one another before any byte of them is read.
        workers: the members' worker_ids in order of rank.
    """

    round_id: RoundId
    ordinal: int
    version: Version
    seats: tuple[Seat, ...]
    store: StoreAddress
    receivers: tuple[int, ...]
    checkpoint: int = 0
    failures: int = 0
    steps_lost: int = 0
    torn: str = ""
    fallback_size: int = 0
    guarded: bool = False
    workers: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the members."""
        object.__setattr__(self, "workers", tuple(seat.worker_id for seat in self.seats))


def highest_version(candidates: Iterable[Candidate]) -> Version:
    """The highest version that any candidate offers."""
    return max((c.version for c in candidates), default=NO_VERSION)


def newest_checkpoint(candidates: Iterable[Candidate]) -> int:
    """The steps of the newest checkpoint that a candidate can load; 0: none can, or it is not ahead of what one holds.

    Those that hold the state of the call before have looked, too, and say so of checkpoints that are ahead of it alone.
    """
    candidates = tuple(candidates)
    best = highest_version(candidates)
    if best != NO_VERSION and not any(c.checkpoint for c in candidates if c.version == best):
        return 0
    return max((c.checkpoint for c in candidates), default=0)


def in_order_of_rank(candidates: Sequence[Candidate], checkpoint: int = 0) -> list[Candidate]:
    """The candidates in the order of the ranks they get; see the module's text for the rule.

    Args:
        candidates: a round's members.
        checkpoint: the steps of the checkpoint that rank 0 is to load; 0: none.
    """
    best = highest_version(candidates)
    able = [c for c in candidates if (c.checkpoint == checkpoint if checkpoint else c.version == best)]
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
        ordinal: which `run` call of the script it belongs to.
        candidates: its members.
        first: whether nothing has made the members' states equal yet, as before the call's first sync: then all
            but rank 0 receive state, which loads the newest checkpoint if any member can. Otherwise those that do not
            hold the highest version receive.
        failures: how many rounds have ended by a failure before it.
    """
    checkpoint = newest_checkpoint(candidates) if first else 0
    ordered = in_order_of_rank(candidates, checkpoint)
    best = ordered[0].version
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
    receivers = tuple(rank for rank, c in enumerate(ordered) if rank > 0 and (first or c.version != best))
    return RoundPlan(
        round_id=round_id,
        ordinal=ordinal,
        version=best,
        seats=seats,
        store=ordered[0].store,
        receivers=receivers,
        checkpoint=checkpoint,
        failures=failures,
    )
