"""What a round continues from if all workers of a round hold the state once between them. Pure.

Such a round cuts the state anew, into as many shards as it has workers, so a version can be there in two shardings:
that of the round, and that of the round before, which members keep until the seal of their first step. A version can be
had in a sharding if each of its positions is held, by its own worker or as a shadow. tests/sim/test_shardings.py
searches the rule; see continuation.py for the seal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from edriver.model.ids import NO_VERSION, Version
from edriver.model.plan import Candidate, RoundPlan
from edriver.model.shards import NO_SHARDING, HeldShards, Sharding


class ShardsOffer(Protocol):
    """What a survivor of a round can continue from."""

    @property
    def version(self) -> Version:
        """The version that it holds."""

    @property
    def sealed(self) -> Version | None:
        """The version that it reaches with the gradients that it has kept, in the first of the shardings."""

    @property
    def shards(self) -> tuple[HeldShards, ...]:
        """What it holds of its version, the latest sharding first."""


OfferT = TypeVar("OfferT", bound=ShardsOffer)


class CutVersion(NamedTuple):
    """A version in a sharding.

    Attributes:
        version: the version; NO_VERSION: no version can be had.
        sharding: the sharding in which all of it is held.
        lost: without a version, the positions of which the newest one is lost.
    """

    version: Version
    sharding: Sharding = NO_SHARDING
    lost: tuple[int, ...] = ()


def newest_cut(offers: Iterable[ShardsOffer]) -> CutVersion:
    """Find the newest version that a survivor holds and that can be had, in the latest sharding in which that is so.

    Args:
        offers: the offers of all survivors.
    """
    offers = tuple(offers)
    held = sorted({offer.version for offer in offers} - {NO_VERSION}, reverse=True)
    for version in held:
        if (sharding := latest_sharding(version, offers)) is not None:
            return CutVersion(version, sharding)
    if not held:
        return CutVersion(NO_VERSION)
    latest = max(_shardings(held[0], offers), default=NO_SHARDING)
    return CutVersion(NO_VERSION, NO_SHARDING, tuple(sorted(_missing(held[0], latest, offers))) or (0,))


def latest_sharding(version: Version, offers: Collection[ShardsOffer]) -> Sharding | None:
    """The latest sharding in which a version can be had; None: it cannot be had."""
    able = (sharding for sharding in _shardings(version, offers) if not _missing(version, sharding, offers))
    return max(able, default=None)


def has_cut(offer: ShardsOffer, version: Version, sharding: Sharding) -> bool:
    """Whether a worker holds, or reaches, anything of a version in a sharding."""
    return any(held.sharding == sharding for held in _of(offer, version))


def missing_holders(version: Version, members: Collection[OfferT], others: Collection[OfferT]) -> list[OfferT]:
    """The fewest of the others who complete what the members hold: with them, all positions are held.

    Args:
        version: what the round continues from: all of them can have it.
        members: its members.
        others: further workers, those first that are to be preferred.
    """
    found: list[OfferT] = []
    sharding = latest_sharding(version, (*members, *others))
    if sharding is None or latest_sharding(version, members) is not None:
        return found
    missing = _missing(version, sharding, members)
    for other in others:
        if missing - (left := missing & _missing(version, sharding, [other])):
            found.append(other)
            missing = left
    return found


def with_sharding(plan: RoundPlan, offers: Iterable[Candidate]) -> RoundPlan:
    """A plan for a round whose members are one replica: those receive who hold nothing of what it continues from.

    Args:
        plan: the round's, of replicas of one worker.
        offers: those of its members.
    """
    by_id = {offer.worker_id: offer for offer in offers}
    ordered = [by_id[seat.worker_id] for seat in plan.seats]
    sharding = (
        latest_sharding(plan.version, ordered) or NO_SHARDING
    )  # of a state that is not sharded, workers say nothing
    able = [rank for rank, offer in enumerate(ordered) if has_cut(offer, plan.version, sharding)]
    source = able[0] if able else 0
    receivers = tuple(rank for rank in range(len(ordered)) if rank not in able and rank != source)
    return replace(plan, sharding=sharding, sources=(source,), receivers=receivers)


def _shardings(version: Version, offers: Iterable[ShardsOffer]) -> set[Sharding]:
    return {held.sharding for offer in offers for held in _of(offer, version)}


def _missing(version: Version, sharding: Sharding, offers: Iterable[ShardsOffer]) -> set[int]:
    there = {p for offer in offers for held in _of(offer, version) if held.sharding == sharding for p in held.positions}
    return {*range(sharding.size)} - there


def _of(offer: ShardsOffer, version: Version) -> Iterator[HeldShards]:
    """What a worker holds, or reaches, of a version."""
    if offer.version == version:
        yield from offer.shards
    elif offer.sealed == version:
        yield from offer.shards[:1]
