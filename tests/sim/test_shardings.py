"""What a round of one replica continues from, searched exhaustively: every cut of it, at every moment of its members.

A round begins with shards of the sharding before. Its members go through these phases, each in its own time:

    joined      it holds what it brought, and has sent what others need
    cut         it holds the round's shards as well
    sealing     it is in the seal of the first step, with complete gradients
    stepped     it has left the seal, let go of the shards before, and made the step

A member can leave the seal only if all have entered it. Everything else can happen in any order, and any members may be
lost at any time; a member that is lost has got as far as any other.

What must hold: the newest version of which all positions are held is found, and the loss of one member never costs a
step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import pytest

from edriver.driver.core.shardings import CutVersion, has_cut, latest_sharding, missing_holders, newest_cut
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.shards import NO_SHARDING, HeldShards, Sharding, shadowed_position

BEFORE, NOW = RoundId(1, 1), RoundId(1, 2)

OLD = Version(BEFORE, 5)

NEW = Version(NOW, 1)


class Phase(IntEnum):
    JOINED = 0
    CUT = 1
    SEALING = 2
    STEPPED = 3


@dataclass(frozen=True)
class Member:
    """What a survivor offers."""

    version: Version
    sealed: Version | None
    shards: tuple[HeldShards, ...]


def held(sharding: Sharding, rank: int) -> HeldShards:
    return HeldShards(sharding, tuple(sorted({rank, shadowed_position(rank, sharding.size)})))


def offer(phase: Phase, brought: HeldShards | None, now: HeldShards) -> Member:
    before = () if brought is None else (brought,)
    match phase:
        case Phase.JOINED:
            return Member(OLD if before else NO_VERSION, None, before)
        case Phase.CUT:
            return Member(OLD, None, (now, *before))
        case Phase.SEALING:
            return Member(OLD, NEW, (now, *before))
    return Member(NEW, None, (now,))


def forgetful(phase: Phase, brought: HeldShards | None, now: HeldShards) -> Member:
    """A wrong one: it lets go of the shards before as soon as it has the round's."""
    return offer(phase, brought if phase is Phase.JOINED else None, now)


def unshadowed(phase: Phase, brought: HeldShards | None, now: HeldShards) -> Member:
    """A wrong one: it has no shadow in the round's first step."""
    return offer(phase, brought, HeldShards(now.sharding, (now.positions[0],)))


Offers = Callable[[Phase, HeldShards | None, HeldShards], Member]


def situations(before: int, size: int) -> Iterator[tuple[list[HeldShards | None], list[Phase]]]:
    """The members' shards of the sharding before, of which some may not have been in that round; and their phases."""
    old = Sharding(BEFORE, before)
    for survivors in itertools.combinations(range(before), min(before, size)):
        brought = [held(old, rank) for rank in survivors]
        if {p for one in brought for p in one.positions} != set(range(before)):
            continue
        newcomers = [None] * (size - len(brought))
        for phases in itertools.product(Phase, repeat=size):
            if max(phases) < Phase.STEPPED or min(phases) >= Phase.SEALING:
                yield [*brought, *newcomers], list(phases)


def wrong(before: int, size: int, offers: Offers) -> set[str]:
    """What does not hold, with every set of members lost."""
    found = set[str]()
    now = Sharding(NOW, size)
    for brought, phases in situations(before, size):
        members = enumerate(zip(phases, brought, strict=True))
        everyone = [offers(phase, old, held(now, rank)) for rank, (phase, old) in members]
        for count in range(size):
            for lost in itertools.combinations(range(size), count):
                left = [one for rank, one in enumerate(everyone) if rank not in lost]
                cut = newest_cut(left)
                if cut.version == NO_VERSION:
                    if count == 1 and (min(phases) >= Phase.CUT or before == size == len([b for b in brought if b])):
                        found.add("a loss of one member costs the state")
                    if any(of_all(left, version, sharding) for version in (OLD, NEW) for sharding in shardings(left)):
                        found.add("a version is there, and is not found")
                    continue
                there = [v for v in (OLD, NEW) if any(of_all(left, v, sharding) for sharding in shardings(left))]
                if cut.version != max(there) or (count <= 1 and cut.version < max(one.version for one in left)):
                    found.add("a step is lost")
                if not of_all(left, cut.version, cut.sharding):
                    found.add("what was found is not there")
                able = [one for one in left if has_cut(one, cut.version, cut.sharding)]
                if latest_sharding(cut.version, missing_holders(cut.version, [], able)) != cut.sharding:
                    found.add("those that stay do not hold all of it")
    return found


def shardings(offers: list[Member]) -> set[Sharding]:
    return {one.sharding for offer in offers for one in offer.shards}


def of_all(offers: list[Member], version: Version, sharding: Sharding) -> bool:
    there = set[int]()
    for one in offers:
        shards = one.shards if one.version == version else one.shards[:1] if one.sealed == version else ()
        there |= {p for each in shards if each.sharding == sharding for p in each.positions}
    return there == set(range(sharding.size)) and any(one.version == version for one in offers)


SIZES = [(3, 3), (4, 3), (3, 4), (4, 4), (2, 1), (1, 2), (2, 4)]


@pytest.mark.parametrize(("before", "size"), SIZES)
def test_no_cut_loses_a_step(before: int, size: int) -> None:
    assert not wrong(before, size, offer)


def test_shards_before_are_kept_until_the_seal() -> None:
    assert "a loss of one member costs the state" in wrong(3, 3, forgetful)


def test_shadows_are_made_with_the_shards() -> None:
    assert "a loss of one member costs the state" in wrong(3, 3, unshadowed)


def test_the_positions_that_are_lost_are_named() -> None:
    sharding = Sharding(NOW, 4)
    assert newest_cut([]) == CutVersion(NO_VERSION)
    cut = newest_cut([Member(NEW, None, (held(sharding, 0),)), Member(OLD, NEW, (held(sharding, 2),))])
    assert cut == CutVersion(NO_VERSION, NO_SHARDING, (1, 3))


def test_a_worker_without_a_place_stays_if_a_position_is_lost_without_it() -> None:
    sharding = Sharding(NOW, 4)
    offers = [Member(NEW, None, (held(sharding, rank),)) for rank in range(4)]
    cut = newest_cut(offers)
    assert cut == CutVersion(NEW, sharding)
    assert missing_holders(NEW, offers[:2], offers[2:]) == []
    assert missing_holders(NEW, [offers[0], offers[2]], [offers[1], offers[3]]) == [offers[1]]
