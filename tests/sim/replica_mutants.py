"""Wrong variants of the rules of elastic replicas: the simulation, or a case of tests/script, must catch each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edriver.driver.core import round_control, selection, shardings
from edriver.driver.core.continuation import Continuation, ShardOffer
from edriver.driver.core.failures import suspicion
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Round, RunCall
from edriver.driver.core.round_control import RoundControl
from edriver.driver.core.selection import Selection
from edriver.driver.core.shardings import CutVersion, ShardsOffer
from edriver.model.ids import NO_VERSION, Version
from edriver.model.plan import Assignment, Candidate, RoundPlan
from edriver.model.records import HostRecord, Worker
from edriver.model.shards import Sharding
from tests.sim.fabric import Severed
from tests.sim.mutants import Patch
from tests.sim.sim_shards import NOTHING, Held, SimShards, stepped
from tests.sim.trainee import Trainee


def positions_are_given_anew(patch: pytest.MonkeyPatch) -> None:
    """A worker has the position that its rank has, in each round."""
    original = Roster.candidates

    def candidates(self: Roster, waiting: Iterable[Worker], *how: Any, **more: Any) -> list[Candidate]:
        found = original(self, waiting, *how, **more)
        return [c._replace(position=number % self.positions) for number, c in enumerate(found)]

    patch.setattr(Roster, "candidates", candidates)


def a_broken_replicas_member_is_as_good(patch: pytest.MonkeyPatch) -> None:
    """A member of a broken replica takes the place of one whose replica is whole, if it is older."""
    original = selection.select

    def select(candidates: Sequence[Candidate], *how: Any) -> Selection:
        return original([c._replace(replica=0) for c in candidates], *how)

    patch.setattr(round_control, "select", select)


def no_guest_stays(patch: pytest.MonkeyPatch) -> None:
    """The last holder of a position leaves with its slot."""
    original = selection.select

    def select(candidates: Sequence[Candidate], placed: Collection[int], *how: Any) -> Selection:
        found = original(candidates, placed, *how)
        return found if how[-1] == 1 else replace(found, state_keepers=())

    patch.setattr(round_control, "select", select)


def guests_train(patch: pytest.MonkeyPatch) -> None:
    """A round that has guests trains."""
    patch.setattr(RoundPlan, "hands_over", property(lambda self: False))
    patch.setattr(Assignment, "hands_over", property(lambda self: False))


def the_newest_version_will_do(patch: pytest.MonkeyPatch) -> None:
    """A round continues from the newest version, whether there is one of each position that reaches it or not."""

    def continue_from(offers: Collection[ShardOffer], positions: int) -> Continuation:
        return Continuation(max(offer.version for offer in offers))

    patch.setattr(selection, "continue_from", continue_from)


def a_version_that_nobody_holds_will_do(patch: pytest.MonkeyPatch) -> None:
    """A round continues from a step that none of its members has made, and some of each position could."""

    def continue_from(offers: Collection[ShardOffer], positions: int) -> Continuation:
        reach = [{v for o in offers if o.position == p for v in (o.version, o.sealed) if v} for p in range(positions)]
        found = set.intersection(*reach)
        return Continuation(max(found)) if found else Continuation(None, (0,))

    patch.setattr(selection, "continue_from", continue_from)


def sealed_workers_hold_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a worker reaches with the gradients that it has kept does not count."""
    patch.setattr(Candidate, "reaches", lambda self, version: version == self.version)


def spares_count_as_replicas(patch: pytest.MonkeyPatch) -> None:
    """Workers make up replicas whatever their positions are."""
    patch.setattr(Roster, "ready", property(lambda self: sum(self.at.ready) // self.positions * self.positions))


def spares_are_sent_away(patch: pytest.MonkeyPatch) -> None:
    """A survivor of a broken replica leaves."""

    def surplus(self: Roster, members: Collection[int], most: int) -> set[int]:
        return {w for w in self.waiting if w in self.placed and w not in members}

    patch.setattr(Roster, "surplus", surplus)


def spares_stay_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Waiting workers of which there are more than replicas could have keep their slots."""
    patch.setattr(Roster, "surplus", lambda self, members, most: set())


def sources_are_of_other_positions(patch: pytest.MonkeyPatch) -> None:
    """A receiver is sent another position's shard."""
    original = selection.plan_round

    def plan(*args: Any, **further: Any) -> RoundPlan:
        made = original(*args, **further)
        return replace(made, sources=tuple(reversed(made.sources)))

    patch.setattr(round_control, "plan_round", plan)


def all_receive_from_one(patch: pytest.MonkeyPatch) -> None:
    """Every receiver is sent the state of the first source."""
    original = selection.plan_round

    def plan(*args: Any, **further: Any) -> RoundPlan:
        made = original(*args, **further)
        return replace(made, sources=made.sources[:1] * len(made.sources))

    patch.setattr(round_control, "plan_round", plan)


def survivors_receive(patch: pytest.MonkeyPatch) -> None:
    """A worker of a round's first replica receives although it holds the version."""
    original = selection.plan_round

    def plan(*args: Any, **further: Any) -> RoundPlan:
        made = original(*args, **further)
        behind = set(range(len(made.seats))) - set(made.sources)
        return made if made.hands_over else replace(made, receivers=tuple(sorted(behind - {len(made.seats) - 1})))

    patch.setattr(round_control, "plan_round", plan)


def any_position_can_take_over(patch: pytest.MonkeyPatch) -> None:
    """A silent worker is killed once another one holds any position's state."""
    original = Suspects._shown

    def shown(self: Suspects, last: Any, call: Any, now: float, instead_of: Worker | None = None) -> float | None:
        other = None if instead_of is None else replace(instead_of, position=0)
        return original(self, last, call, now, instead_of=other)

    patch.setattr(Suspects, "_shown", shown)


def broken_first_syncs_count(patch: pytest.MonkeyPatch) -> None:
    """A first sync that only some have got through is taken for the state that all continue from."""
    patch.setattr(RoundControl, "_undo_first_sync", lambda self: False)


def late_offers_of_an_undone_sync_count(patch: pytest.MonkeyPatch) -> None:
    """What a member that comes back late has of a first sync that was undone is taken for the newest state."""
    patch.setattr(RunCall, "worth", lambda self, version: version)


def small_hosts_begin_at_the_first_position(patch: pytest.MonkeyPatch) -> None:
    """A host that is smaller than a replica has the same positions as all others."""
    original = Roster.slot_positions

    def slot_positions(self: Roster, record: HostRecord, coverage: Sequence[int]) -> list[int]:
        return list(range(len(original(self, record, coverage))))

    patch.setattr(Roster, "slot_positions", slot_positions)


def a_step_is_made_without_the_verdict(patch: pytest.MonkeyPatch) -> None:
    """A sealed worker offers the step as if it had made it."""
    original = Trainee._seal

    def seal(self: Trainee, step: int, norm: float) -> Any:
        try:
            yield from original(self, step, norm)
        except Severed:
            self.alone += 1

    patch.setattr(Trainee, "_seal", seal)


# ---- all workers of a round are one replica --------------------------------------------------------------------


def the_newest_shards_will_do(patch: pytest.MonkeyPatch) -> None:
    """A round continues from the newest version, whether all of its positions are there or not."""

    def newest(offers: Iterable[ShardsOffer]) -> CutVersion:
        return CutVersion(max((offer.version for offer in offers), default=NO_VERSION))

    patch.setattr(selection, "newest_cut", newest)


def shadows_hold_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a worker keeps of another one does not count."""
    original = SimShards.held
    patch.setattr(SimShards, "held", lambda self: [held.only_own() for held in original(self)])


def any_worker_can_take_over(patch: pytest.MonkeyPatch) -> None:
    """A silent worker is killed once any other one waits, whatever parts of the state that one has."""
    patch.setattr(suspicion, "newest_cut", lambda offers: CutVersion(max(offer.version for offer in offers)))


def no_keeper_of_shards_stays(patch: pytest.MonkeyPatch) -> None:
    """A worker without a place leaves, although a position is lost without it."""
    patch.setattr(selection, "missing_holders", lambda version, members, others: [])


def those_without_a_place_leave_at_once(patch: pytest.MonkeyPatch) -> None:
    """They leave before the others have shards of the round."""
    patch.setattr(Round, "awaits_first_step", property(lambda self: False))


def any_sharding_will_do(patch: pytest.MonkeyPatch) -> None:
    """A round's shards are cut from the latest sharding, whether all of it is there or not."""

    def latest(version: Version, offers: Collection[ShardsOffer]) -> Sharding | None:
        return max((held.sharding for offer in offers for held in offer.shards), default=None)

    patch.setattr(shardings, "latest_sharding", latest)


def shards_before_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A worker lets go of the shards before as soon as it has the round's."""
    original = SimShards.enter

    def enter(self: SimShards) -> None:
        original(self)
        self.before = NOTHING

    patch.setattr(SimShards, "enter", enter)


def shadows_are_a_step_behind(patch: pytest.MonkeyPatch) -> None:
    """A shadow does not make the step."""

    def step(self: SimShards) -> None:
        rank = self.now.own
        own = stepped(self.now.shards[rank], self._gradients[rank])
        self.now = Held(self.now.sharding, {**self.now.shards, rank: own}, rank)

    patch.setattr(SimShards, "step", step)


def a_stale_shadow_counts(patch: pytest.MonkeyPatch) -> None:
    """A shadow is offered although the script has written to the parameters since."""
    patch.setattr(SimShards, "latest", property(lambda self: self.now))


ONE_REPLICA_MUTANTS: tuple[Patch, ...] = (
    the_newest_shards_will_do,
    shadows_hold_nothing,
    any_worker_can_take_over,
    no_keeper_of_shards_stays,
    those_without_a_place_leave_at_once,
    any_sharding_will_do,
    shards_before_are_forgotten,
    shadows_are_a_step_behind,
    a_stale_shadow_counts,
)

REPLICA_MUTANTS: tuple[Patch, ...] = (
    positions_are_given_anew,
    a_broken_replicas_member_is_as_good,
    no_guest_stays,
    guests_train,
    the_newest_version_will_do,
    a_version_that_nobody_holds_will_do,
    sealed_workers_hold_nothing,
    spares_count_as_replicas,
    spares_are_sent_away,
    spares_stay_for_ever,
    sources_are_of_other_positions,
    all_receive_from_one,
    survivors_receive,
    any_position_can_take_over,
    broken_first_syncs_count,
    late_offers_of_an_undone_sync_count,
    small_hosts_begin_at_the_first_position,
    a_step_is_made_without_the_verdict,
)
