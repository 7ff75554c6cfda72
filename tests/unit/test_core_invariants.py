"""The rules that the core asserts of its own decisions: each is broken here, and the core says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edriver.driver.core import round_control, selection
from edriver.driver.core.membership import Membership
from edriver.driver.core.obstacles import Obstacles
from edriver.driver.core.placement import Placement
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Interrupt
from edriver.driver.core.selection import Selection, plan_round, select
from edriver.model import events
from edriver.model.actions import Action, StartWorker
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate
from edriver.model.records import Worker
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from tests.unit.host_sets import hosts
from tests.unit.offers import candidates

ROUND = RoundId(1, 1)


class Run:
    """Workers 1 and 2 on host a, 3 on host b train in round 1.1; a second passes with every event."""

    def __init__(self, min_np: int = 1) -> None:
        self.now = 0.0
        self.core = Membership(Settings(np=3, min_np=min_np, max_np=3), now=0.0)
        self.step(events.HostsObserved(hosts("a:2 b:1")))
        self.step(events.AgentConnected("a", 1))
        self.step(events.AgentConnected("b", 2))
        for worker in (1, 2, 3):
            self.waits(worker)
        for worker in (1, 2, 3):
            self.step(events.FirstBoundaryPassed(worker, ROUND, {}))
        assert self.core.round is not None
        assert self.core.round.plan.workers == (1, 2, 3)
        assert self.core.round.running

    def step(self, event: events.Event) -> list[Action]:
        self.now += 1.0
        return self.core.step(event, self.now)

    def waits(self, worker: int, version: Version = NO_VERSION) -> list[Action]:
        return self.step(events.WorkerWaiting(worker, 1, version, StoreAddress("10.0.0.1", 4000 + worker), ""))

    def loses(self, worker: int) -> list[Action]:
        return self.step(events.WorkerEnding(worker))


def refused(words: str) -> Any:
    return pytest.raises(AssertionError, match=words)


def test_nothing_is_refused_of_a_run_that_loses_a_worker() -> None:
    run = Run()
    run.loses(2)
    run.waits(1, Version(ROUND, 2))
    run.waits(3, Version(ROUND, 1))
    assert run.core.round is not None
    assert (run.core.round.plan.workers, run.core.round.plan.version) == ((1, 3), Version(ROUND, 2))


def test_the_clock_never_goes_back() -> None:
    run = Run()
    with refused("the clock goes back from 9.0 to 8.5"):
        run.core.step(events.Ticked(), 8.5)


def test_no_worker_is_started_while_members_rejoin(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    monkeypatch.setattr(Placement, "dismiss", lambda self, now: [StartWorker(9, "a", 1, background=True)])
    with refused(r"a worker is started while members of round 1\.1 rejoin"):
        run.loses(2)


def test_no_verdict_is_given_before_all_members_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.step(events.DrainRequested("b", None, ""))
    assert run.core.round is not None
    interrupt = run.core.round.interrupt
    assert interrupt is not None
    run.step(events.BoundaryReached(1, ROUND, interrupt.number, 7))
    answered, first = Interrupt.answered, iter([True, True])
    monkeypatch.setattr(Interrupt, "answered", lambda self, members: next(first, None) or answered(self, members))
    with refused("a member that has not answered may be past the boundary"):
        run.step(events.Ticked())


def test_no_round_is_formed_while_members_may_come_back() -> None:
    run = Run()
    run.loses(2)
    run.waits(1, Version(ROUND, 1))
    with refused("its members come back first"):
        run.core.rounds.form(run.now)


def test_no_round_is_smaller_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(min_np=3)
    monkeypatch.setattr(Obstacles, "find", lambda *_: None)
    run.loses(2)
    run.waits(1, Version(ROUND, 1))
    with refused("2 members are not within the limits"):
        run.waits(3, Version(ROUND, 1))


def test_no_round_is_of_a_part_of_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.loses(2)
    run.waits(1, Version(ROUND, 1))
    monkeypatch.setattr(Roster, "fitting", lambda self, count: count - 1)
    with refused("1 workers make up no whole replicas"):
        run.waits(3, Version(ROUND, 1))


def test_the_ids_of_rounds_grow() -> None:
    run = Run()
    run.loses(2)
    run.waits(1, Version(ROUND, 1))
    run.core.rounds.resume(0)
    with refused("the ids of rounds grow"):
        run.waits(3, Version(ROUND, 1))


def test_a_slot_has_one_worker() -> None:
    with refused("slot 0 of a is taken"):
        Run().core.roster.add(Worker(9, "a", 0))


def test_no_round_goes_back_behind_what_a_worker_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(*arguments: Any) -> Selection:
        return replace(select(*arguments), version=Version(ROUND, 1))

    run = Run()
    run.loses(2)
    run.waits(1, Version(ROUND, 2))
    monkeypatch.setattr(round_control, "select", older)
    with refused(r"the round goes back behind 1\.1:2, which a worker holds"):
        run.waits(3, Version(ROUND, 1))


def test_ranks_that_break_a_rule_are_not_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = candidates("1@a=1:1 2@b=- 3@a=-")

    def assign(*order: int) -> None:
        by_id: dict[int, Candidate] = {candidate.worker_id: candidate for candidate in offers}
        monkeypatch.setattr(selection, "in_order_of_rank", lambda *_: [by_id[worker_id] for worker_id in order])
        plan_round(RoundId(1, 2), 1, offers, first=False)

    assign(1, 3, 2)
    with refused("rank 0 does not hold the version"):
        assign(2, 1, 3)
    with refused("ranks of a host are not contiguous: .'a', 'b', 'a'."):
        assign(1, 2, 3)
    offers[2] = offers[2]._replace(slot=0)
    with refused("two members share a slot"):
        assign(1, 3, 2)
