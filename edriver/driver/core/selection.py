"""Who should be in a round, and with which rank. Pure: when to act on it is decided elsewhere.

In a round of replicas of S workers, rank = replica * S + position. What follows is said of their members at position 0,
which bring the rest of their replica along: with S = 1 that is all of them.

Rank 0 is the oldest holder of the newest version. Where none has trained in this `run` call, it is the oldest worker
that can load the newest checkpoint, if there is one. Its host comes first, then hosts by the age of their oldest
survivor; within a host survivors come by age, then newcomers. Ranks of one host are contiguous.

Workers that have had a rank are older than those that have not, and keep their order: rank 0 does not move while it
lives and holds the state. Others are as old as their processes. In a run's first round the order of discovery and of
the slots takes the place of age.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TypeVar

from edriver.driver.core.continuation import continue_from
from edriver.driver.core.positions import in_whole_replicas
from edriver.driver.core.shardings import missing_holders, newest_cut
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate, RoundPlan, Seat
from edriver.model.records import OfferKind


def newest_version(offers: Iterable[Candidate | OfferKind], replica_size: int) -> tuple[Version, tuple[int, ...]]:
    """What a round continues from, and the positions of which that is lost.

    Returns:
        NO_VERSION: none of them holds state, or positions are lost.
    """
    held = [offer for offer in offers if offer.version != NO_VERSION]
    if any(offer.shards for offer in held):
        cut = newest_cut(held)
        return cut.version, cut.lost
    # Among the living: the first version of the core remembered the highest version ever offered, and waited for its
    # holder for ever.
    if replica_size == 1:  # every version that is held can be had
        return max((offer.version for offer in held), default=NO_VERSION), ()
    if not held:
        return NO_VERSION, ()
    found = continue_from(held, replica_size)
    return found.version or NO_VERSION, found.lost


def newest_checkpoint(offers: Iterable[Candidate | OfferKind], version: Version, replica_size: int = 1) -> int:
    """The steps of the newest checkpoint that one of each position can load; 0: there is no such checkpoint, or it is
    not ahead of the version that they hold.

    Those that hold the state of the call before have looked, too, and say so of checkpoints that are ahead of it alone.
    """
    offers = tuple(offers)
    if version != NO_VERSION and not any(offer.checkpoint for offer in offers if offer.reaches(version)):
        return 0
    loadable = [{offer.checkpoint for offer in offers if offer.position == p} for p in range(replica_size)]
    return max(set.intersection(*loadable), default=0)


# ---- who ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """The members that a round would have if it formed now.

    Attributes:
        version: the version that it continues from.
        members: the candidates that have a slot, in whole replicas, at most max_np of them.
        state_keepers: holders of that version without a slot, one of each position that no member holds: they count
            neither for min_np nor for max_np, and leave once the members are synced.
        lost: the positions of which the newest version is lost.
    """

    version: Version
    members: tuple[Candidate, ...]
    state_keepers: tuple[Candidate, ...] = ()
    lost: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Members and state keepers."""
        return (*self.members, *self.state_keepers)


def select(
    candidates: Sequence[Candidate],
    placed: Collection[int],
    max_np: int,
    leaving: Collection[int] = (),
    before: int = 0,
    replica_size: int = 1,
) -> Selection:
    """Choose a round's members among the workers that wait: as many of each position.

    If there are more of a position than that, the youngest are left out; those that reach the version come before other
    survivors, and those before newcomers, of which those come first that can load the newest checkpoint. Members of
    replicas that are still whole come before those of broken ones.

    Args:
        candidates: the waiting workers.
        placed: worker_ids that have a slot now.
        max_np: maximum number of members.
        leaving: worker_ids that stay while their replacements get ready: they fill the round up to its size before.
        before: that size.
        replica_size: the number of workers in a replica.
    """
    version, lost = newest_version(candidates, replica_size)
    able = Counter(c.replica for c in candidates if c.worker_id in placed and c.reaches(version))

    def order(c: Candidate) -> tuple[object, ...]:
        broken = version != NO_VERSION and (c.replica is None or able[c.replica] < replica_size)
        return not c.reaches(version), c.version == NO_VERSION, -c.checkpoint, broken, c.age

    columns = _columns(sorted(candidates, key=order), replica_size)
    placed_ones = [[c for c in column if c.worker_id in placed] for column in columns]
    filled = [[*has, *[c for c in of if c.worker_id in leaving]] for has, of in zip(placed_ones, columns, strict=True)]
    replicas, filled_up = _number(map(len, placed_ones), map(len, filled), max_np, before, replica_size)
    chosen = [column[:replicas] for column in (filled if filled_up else placed_ones)]
    keepers = _keepers(version, columns, chosen)
    return Selection(version, tuple(chain.from_iterable(chosen)), tuple(keepers), lost)


_Offer = TypeVar("_Offer", Candidate, OfferKind)


def _keepers(version: Version, columns: list[list[_Offer]], chosen: list[list[_Offer]]) -> list[_Offer]:
    """Those without whom the chosen ones, by position, do not hold all of a version."""
    if version == NO_VERSION:
        return []
    if any(offer.shards for column in columns for offer in column):
        (everyone,), (members,) = columns, chosen
        return missing_holders(version, members, [offer for offer in everyone if offer not in members])
    return [
        next(offer for offer in column if offer.reaches(version))
        for column, of in zip(columns, chosen, strict=True)
        if not any(offer.reaches(version) for offer in of)
    ]


def _columns(offers: Iterable[_Offer], replica_size: int) -> list[list[_Offer]]:
    """Those of each position, in the same order."""
    columns: list[list[_Offer]] = [[] for _ in range(replica_size)]
    for offer in offers:
        columns[offer.position].append(offer)
    return columns


def _number(
    placed: Iterable[int], filled: Iterable[int], max_np: int, before: int, replica_size: int
) -> tuple[int, bool]:
    """The number of replicas, and whether workers that are leaving are needed for them.

    Args:
        placed: the number of workers with a slot, by position.
        filled: the same with those that are leaving.
        max_np: maximum number of members.
        before: the number of members before.
        replica_size: the number of workers in a replica.
    """
    replicas = min(*placed, max_np // replica_size)
    kept = min(*filled, max_np // replica_size, before // replica_size)
    return max(replicas, kept, 0), kept > replicas


@dataclass(frozen=True, slots=True)
class Prospect:
    """A summary of a Selection. `prospect` finds it without a scan of the workers.

    Attributes:
        version: see Selection.
        members: the number of members.
        survivors: the number of members that hold a state.
        keepers: the number of state keepers.
        checkpoint: the steps of the newest checkpoint that they can load; 0: there is no such checkpoint.
        waiting: the number of workers to choose from.
        lost: see Selection.
    """

    version: Version
    members: int
    survivors: int
    keepers: int
    checkpoint: int
    waiting: int
    lost: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of members and state keepers."""
        return self.members + self.keepers


def summary(chosen: Selection, waiting: int, replica_size: int = 1) -> Prospect:
    """What a selection comes to.

    Args:
        chosen: the selection.
        waiting: the number of workers that it was made from.
        replica_size: the number of workers in a replica.
    """
    return Prospect(
        version=chosen.version,
        members=len(chosen.members),
        survivors=sum(candidate.version != NO_VERSION for candidate in chosen.members),
        keepers=len(chosen.state_keepers),
        checkpoint=newest_checkpoint(chosen.all, chosen.version, replica_size),
        waiting=waiting,
        lost=chosen.lost,
    )


def still_needed(ready: int, before: int, max_np: int) -> int:
    """The number of workers with drained slots that a round keeps, so that it is no smaller than before.

    Args:
        ready: the number of its members with a slot.
        before: its size before.
        max_np: maximum number of members.
    """
    return max(0, min(before, max_np) - ready)


def prospect(offers: Mapping[OfferKind, int], max_np: int, before: int = 0, replica_size: int = 1) -> Prospect:
    """What `select` would choose among workers that make these offers; the arguments as there.

    Not for shards that all workers of a round hold once between them: who stays depends on which workers are chosen.
    """
    version, lost = newest_version(offers, replica_size)
    ordered = sorted(offers, key=lambda kind: (not kind.reaches(version), kind.version == NO_VERSION, -kind.checkpoint))
    columns = _columns(ordered, replica_size)
    placed = [[kind for kind in column if kind.placed] for column in columns]
    filled = [[*has, *[k for k in of if k.leaving]] for has, of in zip(placed, columns, strict=True)]
    counts = [[sum(map(offers.__getitem__, column)) for column in of] for of in (placed, filled)]
    replicas, filled_up = _number(counts[0], counts[1], max_np, before, replica_size)
    chosen = [_fill(column, offers, replicas) for column in (filled if filled_up else placed)]
    keepers = _keepers(version, columns, [[kind for kind, _ in of] for of in chosen])
    members = list(chain.from_iterable(chosen))
    return Prospect(
        version=version,
        members=sum(count for _, count in members),
        survivors=sum(count for kind, count in members if kind.version != NO_VERSION),
        keepers=len(keepers),
        checkpoint=newest_checkpoint([*[kind for kind, _ in members], *keepers], version, replica_size),
        waiting=sum(offers.values()),
        lost=lost,
    )


def placed_in_replicas(offers: Mapping[OfferKind, int], replica_size: int) -> int:
    """The number of workers with a slot that make up whole replicas, of those that make these offers."""
    counts = [0] * replica_size
    for kind, count in offers.items():
        if kind.placed:
            counts[kind.position] += count
    return in_whole_replicas(counts)


def _fill(kinds: Iterable[OfferKind], offers: Mapping[OfferKind, int], room: int) -> list[tuple[OfferKind, int]]:
    """The first workers of these kinds, as many as there is room for."""
    chosen = list[tuple[OfferKind, int]]()
    for kind in kinds:
        if room > 0:
            chosen.append((kind, min(offers[kind], room)))
            room -= chosen[-1][1]
    return chosen


def _alone(_: int) -> int:
    return 0


def wanted_members(
    members: Collection[int],
    newcomers: Iterable[int],
    placed: Collection[int],
    max_np: int,
    keeps_state: bool = True,
    leaving: Collection[int] = (),
    position: Callable[[int], int] = _alone,
    replica_size: int = 1,
) -> set[int]:
    """The members that a running round should have, as many of each position: those that still have a slot, then
    newcomers that are ready.

    Members that are `leaving` stay as long as there would be fewer members than now without them. If no member of a
    position has a place any more, the oldest stays where members hold the state, so that it is held.
    """
    with_place: list[list[int]] = [[] for _ in range(replica_size)]
    filled: list[list[int]] = [[] for _ in range(replica_size)]
    for worker in (*sorted(w for w in members if w in placed), *sorted(w for w in newcomers if w in placed)):
        with_place[position(worker)].append(worker)
        filled[position(worker)].append(worker)
    for worker in sorted(w for w in members if w in leaving):
        filled[position(worker)].append(worker)
    replicas, filled_up = _number(map(len, with_place), map(len, filled), max_np, len(members), replica_size)
    wanted = {worker for of in (filled if filled_up else with_place) for worker in of[:replicas]}
    if keeps_state:
        held = {position(worker) for worker in members if worker in wanted}
        wanted |= {min(w for w in members if position(w) == p) for p in range(replica_size) if p not in held}
    return wanted


# ---- with which rank ------------------------------------------------------------------------------------------


def in_order_of_rank(
    candidates: Sequence[Candidate], version: Version, checkpoint: int = 0, replica_size: int = 1
) -> list[Candidate]:
    """The candidates in the order of the ranks they get; see the module's text for the rule.

    Args:
        candidates: a round's members, as many of each position.
        version: the version that the round continues from.
        checkpoint: the steps of the checkpoint that rank 0 is to load; 0: none.
        replica_size: the number of workers in a replica.
    """

    def newcomer(c: Candidate) -> bool:
        return c.version == NO_VERSION

    leaders = [c for c in candidates if c.position == 0]
    able = [c for c in leaders if (c.checkpoint == checkpoint if checkpoint else c.reaches(version))]
    first = min(able or leaders, key=lambda c: c.age)  # a state keeper of position 0 has no rank in a replica
    by_host: dict[str, list[Candidate]] = {}
    for candidate in leaders:
        by_host.setdefault(candidate.host, []).append(candidate)
    for group in by_host.values():
        group.sort(key=lambda c: (c is not first, newcomer(c), c.age))
    hosts = sorted(by_host.values(), key=lambda group: (group[0] is not first, newcomer(group[0]), group[0].age))
    ordered = [candidate for group in hosts for candidate in group]
    if replica_size == 1:
        return ordered
    replicas = [[leader] for leader in ordered]
    for column in _columns(sorted(candidates, key=lambda c: (newcomer(c), c.age)), replica_size)[1:]:
        _join(replicas, column)
    return [candidate for replica in replicas for candidate in replica]


def _join(replicas: list[list[Candidate]], column: list[Candidate]) -> None:
    """Add one of a position to each replica: who was in one with its members, else who is on one of their hosts."""
    ties: tuple[Callable[[Candidate], object], ...] = (lambda c: c.replica, lambda c: c.host, lambda c: c is not None)
    found = dict[int, Candidate]()
    for tie in ties:
        left: dict[object, deque[Candidate]] = {}
        taken = {c.worker_id for c in found.values()}
        for candidate in column:
            if candidate.worker_id not in taken:
                left.setdefault(tie(candidate), deque()).append(candidate)
        for number, replica in enumerate(replicas):
            alike = (left[tie(c)] for c in replica if tie(c) is not None and left.get(tie(c)))
            if number not in found and (of := next(alike, None)):
                found[number] = of.popleft()
    for number, replica in enumerate(replicas):
        replica.append(found[number])


def plan_round(
    round_id: RoundId,
    ordinal: int,
    candidates: Sequence[Candidate],
    first: bool,
    failures: int = 0,
    version: Version | None = None,
    replica_size: int = 1,
    guests: Sequence[Candidate] = (),
    in_memory: int = 0,
    max_on_machine: Mapping[str, int] | None = None,
) -> RoundPlan:
    """Assign all ranks at once.

    Args:
        round_id: the round's id.
        ordinal: the number of the script's `run` call that it belongs to.
        candidates: its members, as many of each position.
        first: whether the members' states have not been made equal yet, as before the call's first sync: then all
            but the sources receive state, and those load the newest checkpoint if members can. Otherwise those that do
            not reach the version receive.
        failures: the number of earlier rounds that ended by a failure.
        version: what the round continues from; None: the newest that the candidates hold.
        replica_size: the number of workers in a replica.
        guests: holders of the version that make up no replica. They get the last ranks, and only send.
        in_memory: the steps of the checkpoint in memory that all of them can load; 0: there is none.
        max_on_machine: see Assignment; by host. None: not known.
    """
    if version is None:
        version, _ = newest_version(candidates, replica_size)
    checkpoint = newest_checkpoint([*candidates, *guests], version, replica_size) if first else 0
    if in_memory and in_memory >= checkpoint:
        candidates = [c._replace(checkpoint=in_memory) for c in candidates]
        checkpoint = in_memory
    ordered = [*in_order_of_rank(candidates, version, checkpoint, replica_size), *guests]
    able = [
        rank for rank, c in enumerate(ordered) if (c.checkpoint == checkpoint if checkpoint else c.reaches(version))
    ]
    lowest = {ordered[rank].position: rank for rank in reversed(able)}
    assert len(lowest) == replica_size, "a position has no member that holds the version"
    sources = tuple(lowest[position] for position in range(replica_size))
    assert replica_size > 1 or sources[0] == 0, "rank 0 does not hold the version"
    assert len({(c.host, c.slot) for c in ordered}) == len(ordered), "two members share a slot"
    hosts = [host for host, _ in groupby(c.host for c in ordered[: len(candidates) : replica_size])]
    assert len(set(hosts)) == len(hosts), f"ranks of a host are not contiguous: {hosts}"
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
            max_on_machine=max_on_machine[candidate.host] if max_on_machine else 0,
        )
        for rank, (candidate, local_rank, cross_rank) in enumerate(places)
    )
    receivers = tuple(
        rank
        for rank, c in enumerate(ordered[: len(candidates)])
        if rank != sources[c.position] and (first or not c.reaches(version))
    )
    return RoundPlan(
        round_id=round_id,
        ordinal=ordinal,
        version=version,
        seats=seats,
        store=ordered[0].store,
        receivers=receivers,
        sources=sources,
        replica_size=replica_size,
        first_sync=first,
        checkpoint=checkpoint,
        failures=failures,
    )
