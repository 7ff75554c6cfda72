"""What many members report at once is decided upon together: at most a moment later, and with the same result."""

from __future__ import annotations

import pytest

from edriver.driver.core import membership
from edriver.driver.core.membership import MANY, TOGETHER, Membership
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, Version
from edriver.model.plan import RoundPlan
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress

SLOTS, HOSTS = 8, 20
SIZE = SLOTS * HOSTS
STEP = 0.0001
"""Seconds from one event to the next."""


class Run:
    """A run of hosts, up to the first round, which trains on; then one host of it is lost."""

    def __init__(self) -> None:
        self.core = Membership(Settings(np=SIZE, min_np=1, max_np=SIZE), now=0.0)
        self.now = 0.0
        self.ordered: list[actions.Action] = []
        self.plan: RoundPlan | None = None
        self.workers: dict[int, str] = {}
        agents: dict[str, int] = {}
        names = [f"host-{n}" for n in range(HOSTS)]
        self.feed(events.HostsObserved(HostSet(tuple(Host(name, SLOTS) for name in names))))
        for action in list(self.ordered):
            if isinstance(action, actions.StartAgent):
                agents[action.host] = action.agent_id
                self.feed(events.AgentConnected(action.host, action.agent_id))
        for worker_id in list(self.workers):
            self.waiting(worker_id, NO_VERSION)
        self.first = self.newest
        self.step_once()
        self.now += 100.0
        self.feed(events.AgentLost("host-3", agents["host-3"], AgentFault(AgentFaultKind.ENDED, "exited")))
        self.survivors = [worker for worker in self.first.workers if self.workers[worker] != "host-3"]

    @property
    def newest(self) -> RoundPlan:
        assert self.plan is not None
        return self.plan

    def feed(self, event: events.Event) -> list[actions.Action]:
        self.now += STEP
        step = self.core.step(event, self.now)
        self.ordered += step
        for action in step:
            match action:
                case actions.StartWorker(worker_id, host):
                    self.workers[worker_id] = host
                case RoundPlan():
                    self.plan = action
        return step

    def waiting(self, worker_id: int, version: Version) -> list[actions.Action]:
        return self.feed(events.WorkerWaiting(worker_id, 1, version, StoreAddress("host", 1), ""))

    def come_back(self, workers: list[int]) -> None:
        for worker_id in workers:
            self.waiting(worker_id, Version(self.first.round_id, 1))

    def step_once(self) -> None:
        for worker_id in self.newest.workers:
            self.feed(events.FirstBoundaryPassed(worker_id, self.newest.round_id, {}))


def story() -> list[actions.Action]:
    """What is ordered when a host is lost, a slot is drained meanwhile, and all the others come back."""
    run = Run()
    run.come_back(run.survivors[:30])
    run.feed(events.DrainRequested("host-5", 2, "for a look"))
    run.come_back(run.survivors[30:])
    run.step_once()
    run.now += 100.0
    run.feed(events.Ticked())
    return [action for action in run.ordered if not isinstance(action, actions.Explain)]  # how far it is, now and then


def test_it_makes_no_difference_to_what_is_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    together = story()
    monkeypatch.setattr(membership, "MANY", SIZE + 1)
    assert together == story()


def test_the_last_member_to_come_back_is_not_kept_waiting() -> None:
    run = Run()
    run.come_back(run.survivors[:-1])
    assert run.newest is run.first
    assert any(
        isinstance(action, RoundPlan) for action in run.waiting(run.survivors[-1], Version(run.first.round_id, 1))
    )


def test_what_is_known_is_looked_at_again_within_a_moment() -> None:
    run = Run()
    came_back = run.now
    run.come_back(run.survivors[:5])
    due = run.core.next_deadline
    assert due is not None
    assert came_back < run.now < due <= came_back + TOGETHER
    run.now = due
    run.feed(events.Ticked())
    later = run.core.next_deadline
    assert later is not None
    assert later > due + TOGETHER


def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Has it noted from now on when all that is known is looked at."""
    found: list[float] = []
    decisions = Membership._decisions

    def noted(core: Membership, now: float):  # type: ignore[no-untyped-def]
        found.append(now)
        return decisions(core, now)

    monkeypatch.setattr(Membership, "_decisions", noted)
    return found


def test_all_that_is_known_is_looked_at_once_for_many_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    found = looks(monkeypatch)
    run.come_back(run.survivors)
    assert MANY <= len(found) < MANY + 5 < len(run.survivors)
    found.clear()
    run.step_once()
    assert MANY <= len(found) < MANY + 5


def test_so_is_what_workers_report_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looks(monkeypatch)
    Run()
    of_reports = len(found) - (1 + HOSTS + 1)  # discovery, agents, and the one that is lost
    assert 2 * MANY <= of_reports < 2 * (MANY + 5) < 2 * SIZE


def test_another_event_is_decided_upon_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.come_back(run.survivors[:5])
    found = looks(monkeypatch)
    run.feed(events.DrainRequested("host-5", 2, "for a look"))
    assert found == [run.now]
    run.come_back(run.survivors[5:9])
    assert len(found) == 1
    run.now += TOGETHER
    run.come_back(run.survivors[9:10])
    assert len(found) == 2


def test_who_is_suspected_is_killed_as_soon_as_another_has_shown_itself() -> None:
    run = Run()
    suspected, other = run.survivors[20], run.survivors[0]
    run.feed(events.LeaseExpired(suspected, 5.0))
    step = run.waiting(other, Version(run.first.round_id, 1))
    assert [action.worker_id for action in step if isinstance(action, actions.StopWorker)] == [suspected]
