"""Which version the next round continues from. Pure. Part of the core. tests/sim/test_seal.py searches the rule.

A replica is a group of workers that hold the state once between them, and the place of a worker in its replica is its
position. Workers of one position hold the same shard. Positions finish a step apart from each other, so a loss can
leave one of them a step ahead of another, and no worker can undo an optimizer's step without a copy. The seal prevents
that. It is a collective over all members, between the last one that gradients need and the optimizer's step, so that no
member makes the step before all have complete gradients. A survivor of a round is therefore in one of three phases:

    computing   it has not entered the seal, and holds the version of its last boundary
    sealed      it has entered the seal and not left it: it holds that version, too, and has kept its gradients, with
                which it can make the step without any other worker
    applied     it has left the seal and made the step, and holds the version that follows

Once one has left the seal, no survivor computes: all others are sealed or have applied. So all survivors can reach the
newest version that one of them holds, and only newcomers receive state, from a holder of their position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from edriver.model.ids import Version


class ShardOffer(Protocol):
    """What a survivor of a round can continue from."""

    @property
    def position(self) -> int:
        """Its position, from 0."""

    @property
    def version(self) -> Version:
        """The version that it holds. It keeps this name until its holder has passed a boundary of the next round:
        members that named it after their own round could not be matched with those that have yet to step.
        """

    @property
    def sealed(self) -> Version | None:
        """The version that it reaches with the gradients that it has kept; None: it is not sealed."""


class Continuation(NamedTuple):
    """What the next round continues from.

    Attributes:
        version: the version; None: no version can be had of every position.
        lost: the positions of which the newest version is lost; empty with a version.
    """

    version: Version | None
    lost: tuple[int, ...] = ()


def continue_from(offers: Iterable[ShardOffer], positions: int) -> Continuation:
    """Find the newest version that a survivor holds and that some survivor of every position holds or reaches.

    A version that survivors could reach and none holds does not count. Others may still compute, and would have to
    receive their shards, only to save one step. And if the seal is the reduction by which gradients are clipped, nobody
    knows the norm that those in it need.

    Args:
        offers: the offers of all survivors. One that has not reported yet may have applied the step, so the decision
            has to wait for it.
        positions: the number of positions.
    """
    offers = tuple(offers)
    within_reach = [{v for o in offers if o.position == p for v in (o.version, o.sealed)} for p in range(positions)]
    held = sorted({offer.version for offer in offers}, reverse=True)
    for version in held:
        if all(version in versions for versions in within_reach):
            return Continuation(version)
    lost = (p for p, versions in enumerate(within_reach) if not held or held[0] not in versions)
    return Continuation(None, tuple(lost))
