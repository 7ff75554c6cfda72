"""How many workers there can be on each member's machine, as the members of a round learn it."""

from __future__ import annotations

from collections.abc import Mapping

from edriver.driver.core.membership import Membership
from edriver.model import events
from edriver.model.actions import Action
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.ids import NO_VERSION, Version
from edriver.model.plan import RoundPlan
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from tests.unit.host_sets import hosts


class Run:
    """A run whose agents connect at once, and whose first workers have made a step of round 1.1."""

    def __init__(
        self, there: str, np: int, max_np: int | None = None, machines: Mapping[str, str] | None = None
    ) -> None:
        self.now = 0.0
        self.core = Membership(Settings(np=np, min_np=1, max_np=max_np or np), now=0.0)
        self.step(events.HostsObserved(hosts(there)))
        for agent, name in enumerate(hosts(there).names, start=1):
            self.step(events.AgentConnected(name, agent, (machines or {}).get(name, "")))
        for worker in range(1, self.core.settings.max_np + 1):
            self.waits(worker)
        self.steps()

    def step(self, event: events.Event) -> list[Action]:
        self.now += 1.0
        return self.core.step(event, self.now)

    def steps(self) -> None:
        for worker in self.plan.workers:
            self.step(events.FirstBoundaryPassed(worker, self.plan.round_id, {}))

    def waits(self, worker: int) -> None:
        """A newcomer is ready."""
        self.step(events.WorkerWaiting(worker, 1, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""))

    def come_back(self, *workers: int) -> None:
        """All members that live do, with one more step."""
        version = Version(self.plan.round_id, 2)
        for worker in workers:
            self.step(events.WorkerWaiting(worker, 1, version, StoreAddress("10.0.0.1", 4000 + worker), ""))

    @property
    def plan(self) -> RoundPlan:
        assert self.core.round is not None
        return self.core.round.plan

    @property
    def found(self) -> dict[int, int]:
        """The number, by worker_id."""
        return {seat.worker_id: seat.max_on_machine for seat in self.plan.seats}


def test_as_many_as_its_slots() -> None:
    assert Run("a:2 b:1", np=3).found == {1: 2, 2: 2, 3: 1}


def test_no_more_than_the_run_uses() -> None:
    assert Run("a:4 b:4", np=1).found == {1: 1}
    assert Run("a:4 b:4", np=1, max_np=6).found == dict.fromkeys(range(1, 7), 4)


def test_one_that_is_left_alone_shares_the_machine_with_those_that_replace_the_others() -> None:
    run = Run("a:2", np=2)
    run.step(events.WorkerEnding(2))
    run.come_back(1)
    assert run.found == {1: 2}


def test_other_hosts_are_nothing_to_it() -> None:
    run = Run("a:1 b:1 c:1", np=3, machines={"a": "x", "b": "y", "c": "z"})
    assert run.found == {1: 1, 2: 1, 3: 1}
    run.step(events.AgentLost("c", 3, AgentFault(AgentFaultKind.ENDED)))
    run.come_back(1, 2)
    assert run.found == {1: 1, 2: 1}


def test_hosts_that_share_processors_are_one_machine() -> None:
    run = Run("a:1 b:1 c:1", np=3, machines={"a": "x", "b": "x", "c": "y"})
    assert run.found == {1: 2, 2: 2, 3: 1}
    run.step(events.AgentSilent("b", 2, AgentFault(AgentFaultKind.SILENT)))
    run.step(events.AgentConnected("b", 2))  # again: what it has said before holds
    run.step(events.AgentLost("b", 2, AgentFault(AgentFaultKind.ENDED)))
    run.come_back(1, 3)
    assert run.found == {1: 2, 3: 1}


def test_slots_that_are_not_to_be_used_do_not_count() -> None:
    run = Run("a:2", np=2)
    run.step(events.DrainRequested("a", 1, "it is slow"))
    for worker in (1, 2):
        run.step(events.BoundaryReached(worker, run.plan.round_id, 1, 1))
    run.come_back(1, 2)
    assert run.found == {1: 1}


def test_one_that_leaves_once_it_is_replaced_counts_beside_the_slots() -> None:
    run = Run("a:1 b:1 c:1", np=2, machines=dict.fromkeys("abc", "x"))
    run.step(events.DrainRequested("b", None, "it goes away", within=600.0))
    run.step(events.WorkerEnding(1))
    run.come_back(2)
    assert run.found == {2: 3}
