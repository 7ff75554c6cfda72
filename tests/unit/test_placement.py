"""Starts and stops: agents for hosts, workers for slots, and workers that lost their slot."""

from __future__ import annotations

from typing import Any

import pytest

from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.placement import MAX_TROUBLES, PLACEMENT_WINDOW, SPARE_HOSTS, Placement
from edriver.driver.core.roster import Roster
from edriver.model.actions import Action, StartAgent, StartWorker, StopAgent, StopWorker
from edriver.model.cause import AgentFault, AgentFaultKind, Cause, CauseKind
from edriver.model.ids import NO_VERSION
from edriver.model.mode import Mode
from edriver.model.records import Offer, Worker, WorkerStep
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from tests.unit.host_sets import hosts


class Site:
    """A placement and its roster, with agents that connect as soon as they are started."""

    def __init__(self, max_np: int = 8, cooldown_range: tuple[float, float] | None = None) -> None:
        self.settings = Settings(np=1, min_np=1, max_np=max_np, leave_grace=30.0, cooldown_range=cooldown_range)
        self.roster = Roster()
        self.placement = Placement(self.settings, self.roster, NewSizes(self.settings, self.roster), draw=lambda: 0.0)

    def observe(self, answer: str, now: float = 0.0, connect: bool = True) -> list[Action]:
        """Take in discovery's answer, tend the hosts, and connect the new agents."""
        self.roster.observe(hosts(answer))
        orders = list(self.placement.tend_hosts(now))
        for order in orders:
            if connect and isinstance(order, StartAgent):
                self.placement.agent_connected(order.host, order.agent_id)
        return orders

    def start(self, now: float = 0.0) -> list[str]:
        """The slots in which workers are started, as host:slot."""
        orders = list(self.placement.start_workers(now, training=0, looks_after=None))
        assert all(isinstance(order, StartWorker) for order in orders)
        return [f"{order.host}:{order.slot}" for order in orders if isinstance(order, StartWorker)]

    def dismiss(self, now: float = 0.0) -> list[Action]:
        return list(self.placement.dismiss(now))

    def worker(self, worker_id: int) -> Worker:
        return self.roster.workers[worker_id]

    def offer(self, worker_id: int) -> None:
        """A worker waits for a round."""
        self.roster.take_offer(self.worker(worker_id), Offer(1, NO_VERSION, StoreAddress("host", 1), ""), now=0.0)

    def train(self, worker_id: int) -> None:
        """A worker is in a round."""
        self.offer(worker_id)
        self.roster.seat(self.worker(worker_id), rank=0, looks_after=None)

    def fail(self, worker_id: int, now: float = 0.0) -> None:
        """A worker's process has ended, and not well."""
        worker = self.roster.workers[worker_id]
        self.placement.quarantine.worker_failed(worker, now)
        self.roster.remove(worker_id)


@pytest.mark.parametrize(
    ("further", "training", "known"),
    [
        pytest.param({"replica_size": 2}, 4, [(0, 2), (1, 2)], id="others-train"),
        pytest.param({"replica_size": 2}, 0, [(0, 0), (1, 0)], id="none-trains"),
        pytest.param({}, 4, [(0, 1), (0, 1)], id="replicas-of-one"),
        pytest.param({"one_replica": True}, 4, [(0, 4), (0, 4)], id="one-replica-others-train"),
        pytest.param({"one_replica": True}, 0, [(0, 0), (0, 0)], id="one-replica-none-trains"),
        pytest.param({"replica_size": 2, "mode": Mode.RESTART}, 4, [(0, 0), (0, 0)], id="restart-mode"),
    ],
)
def test_a_worker_knows_with_what_mesh_to_make_its_model_before_its_first_round(
    further: dict[str, Any], training: int, known: list[tuple[int, int]]
) -> None:
    """Where others train and would wait for it."""
    settings = Settings(np=2, min_np=2, max_np=2, **further)
    roster = Roster(settings.replica_size, settings.mode.members_survive)
    placement = Placement(settings, roster, NewSizes(settings, roster), draw=lambda: 0.0)
    roster.observe(hosts("a:2"))
    placement.tend_hosts(0.0)
    placement.agent_connected("a", 1)
    orders = placement.start_workers(0.0, training, looks_after=None)
    assert [(o.position, o.replica_size) for o in orders if isinstance(o, StartWorker)] == known


# ---- agents ---------------------------------------------------------------------------------------------------


def test_each_host_gets_one_agent_oldest_host_first() -> None:
    site = Site()
    assert site.observe("b:1 a:2") == [StartAgent("b", 1), StartAgent("a", 2)]
    assert site.observe("b:1 a:4") == []


def started(orders: list[Action]) -> list[str]:
    return [order.host for order in orders if isinstance(order, StartAgent)]


def test_of_ten_thousand_hosts_those_that_the_run_can_use_get_an_agent_and_some_more() -> None:
    site = Site(max_np=8)
    names = [f"h{n}" for n in range(10_000)]
    found = started(site.observe(" ".join(f"{name}:2" for name in names)))
    assert found == names[: 4 + SPARE_HOSTS]
    assert site.observe(" ".join(f"{name}:2" for name in names), now=1.0) == []
    assert len(site.start()) == 8


def test_a_host_that_cannot_be_reached_makes_room_for_one_that_was_not_tried() -> None:
    site = Site(max_np=1)
    names = [f"h{n}" for n in range(SPARE_HOSTS + 3)]
    answer = " ".join(f"{name}:1" for name in names)
    assert started(site.observe(answer, connect=False)) == names[:-2]
    site.placement.agent_lost("h0", 1, AgentFault(AgentFaultKind.ENDED, "no route"), now=0.0)
    assert started(site.observe(answer, now=0.0, connect=False)) == names[-2:-1]
    site.placement.agent_lost("h1", 2, AgentFault(AgentFaultKind.ENDED, "no route"), now=0.0)
    # h0 may be tried again by now; one that has not failed goes first.
    assert started(site.observe(answer, now=100.0, connect=False)) == names[-1:]
    site.placement.agent_lost("h2", 3, AgentFault(AgentFaultKind.ENDED, "no route"), now=100.0)
    assert started(site.observe(answer, now=100.0, connect=False)) == ["h0"]


def test_a_host_whose_agent_is_silent_makes_room_for_another() -> None:
    site = Site(max_np=1)
    names = [f"h{n}" for n in range(SPARE_HOSTS + 2)]
    answer = " ".join(f"{name}:1" for name in names)
    assert started(site.observe(answer)) == names[:-1]
    site.placement.agent_silent("h0", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0))
    assert started(site.observe(answer)) == names[-1:]


def test_the_reasons_why_thousands_of_hosts_are_not_used_are_not_thousands() -> None:
    site = Site(max_np=10_000)
    names = [f"h{n}" for n in range(1000)]
    site.observe(" ".join(f"{name}:1" for name in names), connect=False)
    for agent_id, name in enumerate(names, start=1):
        site.placement.agent_lost(name, agent_id, AgentFault(AgentFaultKind.ENDED, "no route"), now=0.0)
    assert [cause.host for cause in site.placement.troubles(0.0)] == names[:MAX_TROUBLES]


def test_an_empty_host_that_is_gone_loses_its_agent_and_its_record() -> None:
    site = Site()
    site.observe("a:1 b:1")
    assert site.observe("a:1") == [StopAgent("b", 2)]
    assert list(site.roster.hosts) == ["a"]
    assert site.observe("a:1 b:1") == [StartAgent("b", 3)]


def test_a_host_that_is_gone_keeps_its_agent_as_long_as_it_has_workers() -> None:
    site = Site()
    site.observe("a:1 b:1")
    site.start()
    assert site.observe("a:1") == []
    site.roster.remove(2)
    assert site.observe("a:1") == [StopAgent("b", 2)]


def test_a_lost_agent_is_started_again_ever_later() -> None:
    site = Site()
    site.observe("a:1")
    started, now = [], 0.0
    for agent_id in range(1, 6):
        site.placement.agent_lost("a", agent_id, AgentFault(AgentFaultKind.ENDED, "ssh: connection refused"), now)
        assert list(site.placement.tend_hosts(now)) == []
        now = min(site.placement.deadlines(now))
        started.append(now)
        assert list(site.placement.tend_hosts(now)) == [StartAgent("a", agent_id + 1)]
    assert started == [1, 2, 4, 8, 16]  # a second at the least; then as a slot's workers


def test_a_lost_agent_takes_its_workers_with_it() -> None:
    site = Site()
    site.observe("a:2 b:1")
    site.start()
    lost = site.placement.agent_lost("a", 1, AgentFault(AgentFaultKind.ENDED, "its stream broke"), now=0.0)
    assert [worker.worker_id for worker in lost] == [1, 2]
    assert site.start(now=100.0) == []  # until an agent is there again


@pytest.mark.parametrize(("host", "agent_id"), [("a", 9), ("z", 1)], ids=["an-older-agent", "an-unknown-host"])
def test_events_of_other_agents_change_nothing(host: str, agent_id: int) -> None:
    site = Site()
    site.observe("a:1", connect=False)
    site.placement.agent_connected(host, agent_id)
    assert not site.roster.hosts["a"].connected
    assert site.placement.agent_lost(host, agent_id, AgentFault(AgentFaultKind.ENDED, "gone"), now=0.0) == []
    assert site.roster.hosts["a"].agent_id == 1
    assert site.placement.troubles(0.0) == ()


def test_troubles_name_the_host_until_it_connects() -> None:
    site = Site()
    site.observe("a:1 b:1", connect=False)
    site.placement.agent_lost("a", 1, AgentFault(AgentFaultKind.ENDED, "ssh: connection refused"), now=0.0)
    site.placement.agent_lost("b", 2, AgentFault(AgentFaultKind.ENDED, "no python3 there"), now=0.0)
    assert site.placement.troubles(0.0) == (
        Cause(CauseKind.HOST_UNUSED, host="a", detail=AgentFault(AgentFaultKind.ENDED, "ssh: connection refused")),
        Cause(CauseKind.HOST_UNUSED, host="b", detail=AgentFault(AgentFaultKind.ENDED, "no python3 there")),
    )
    site.observe("a:1", now=1.0)
    assert site.placement.troubles(0.0) == ()


# ---- workers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "max_np", "started"),
    [
        pytest.param("a:2 b:1", 8, ["a:0", "a:1", "b:0"], id="a-worker-for-every-slot"),
        pytest.param("b:2 a:2", 3, ["b:0", "b:1", "a:0"], id="up-to-max-np-oldest-host-first"),
        pytest.param("", 8, [], id="no-hosts"),
    ],
)
def test_free_slots_are_filled(answer: str, max_np: int, started: list[str]) -> None:
    site = Site(max_np)
    site.observe(answer)
    assert site.start() == started
    assert site.start() == []


def test_a_host_without_its_agent_is_passed_over() -> None:
    site = Site(max_np=1)
    site.observe("a:1", connect=False)
    assert site.start() == []
    site.observe("a:1 b:1")
    assert site.start() == []  # while its agent may be on its way
    assert PLACEMENT_WINDOW in site.placement.deadlines(0.0)
    assert site.start(now=PLACEMENT_WINDOW) == ["b:0"]


def test_a_freed_slot_is_filled_again_by_a_worker_with_a_new_id() -> None:
    site = Site()
    site.observe("a:3")
    site.start()
    site.fail(2)
    assert site.start() == ["a:1"]
    assert sorted(site.roster.workers) == [1, 3, 4]


def test_a_slot_rests_after_failures_and_others_do_not() -> None:
    site = Site(cooldown_range=(5.0, 40.0))
    site.observe("a:2")
    site.start()
    site.fail(1, now=100.0)
    assert site.start(now=104.9) == []
    site.fail(2, now=104.9)
    assert site.start(now=105.0) == ["a:0"]
    site.fail(3, now=105.0)
    assert site.start(now=109.9) == ["a:1"]
    assert site.start(now=115.0) == ["a:0"]


def test_old_failures_are_forgotten() -> None:
    site = Site(cooldown_range=(5.0, 40.0))
    site.observe("a:1")
    site.start()
    for worker_id, (now, again) in enumerate([(100.0, 105.0), (200.0, 210.0), (900.0, 905.0)], start=1):
        site.fail(worker_id, now)  # the third one more than the failure window of 600 s after the second
        assert site.start(again - 0.1) == []
        assert site.start(again) == ["a:0"]


def test_a_completed_slot_is_not_filled_again() -> None:
    site = Site()
    site.observe("a:2")
    site.start()
    site.roster.slot_completed(site.worker(1))
    site.roster.remove(1)
    assert site.start() == []


def test_a_slot_is_taken_until_its_worker_has_exited() -> None:
    site = Site()
    site.observe("a:2")
    site.start()
    site.roster.move(site.worker(1), WorkerStep.STOP)
    assert site.start() == []
    site.roster.remove(1)
    assert site.start() == ["a:0"]


def test_a_host_that_shrank_starts_no_worker_while_it_has_more_than_its_slots() -> None:
    site = Site()
    site.observe("a:3")
    site.start()
    site.observe("a:2")
    site.fail(1)  # workers in slots 1 and 2 are as many as the host has slots
    assert site.start() == []


# ---- dismissal ------------------------------------------------------------------------------------------------


def test_a_booting_worker_whose_host_is_gone_is_stopped_and_a_member_is_not() -> None:
    site = Site()
    site.observe("a:1 b:2")
    site.start()
    site.train(2)
    site.observe("a:1")
    assert site.dismiss() == [StopWorker(3, "b", 30.0)]
    assert site.dismiss() == []


def test_over_max_np_the_youngest_that_boots_is_stopped() -> None:
    site = Site(max_np=2)
    site.observe("a:1 b:1")
    site.start()
    site.observe("b:1")
    site.train(1)  # on a host that is gone: it has no slot
    site.observe("b:1 c:1")
    assert site.start() == ["c:0"]
    site.observe("a:1 b:1 c:1")  # a is back, with its worker
    assert site.dismiss() == [StopWorker(3, "c", 30.0)]


def test_a_leaver_is_terminated_when_its_grace_is_over_and_once() -> None:
    site = Site()
    site.observe("a:1")
    site.start()
    site.roster.move(site.worker(1), WorkerStep.STOP)
    site.roster.stop_at(site.worker(1), 50.0)
    assert 50.0 in site.placement.deadlines(0.0)
    assert site.dismiss(now=49.9) == []
    assert site.dismiss(now=50.0) == [StopWorker(1, "a", 30.0)]
    assert site.dismiss(now=99.0) == []


# ---- hopelessness ---------------------------------------------------------------------------------------------


def test_a_run_is_hopeless_when_every_slot_has_been_tried_and_failed() -> None:
    site = Site()
    site.observe("a:2")
    site.start()
    assert not site.placement.no_slot_works(0.0)
    site.fail(1)
    assert not site.placement.no_slot_works(0.0)  # worker 2 boots, for the first time in its slot
    site.start()
    site.fail(2)
    assert site.placement.no_slot_works(0.0)  # worker 3 boots, but its slot has failed before


def test_a_run_with_a_waiting_worker_is_not_hopeless() -> None:
    site = Site()
    site.observe("a:2")
    site.start()
    site.fail(1)
    site.start()
    site.fail(2)
    site.offer(3)
    assert not site.placement.no_slot_works(0.0)


def test_an_untried_slot_may_work() -> None:
    site = Site()
    site.observe("a:1")
    site.start()
    site.fail(1)
    assert site.placement.no_slot_works(0.0)
    site.observe("a:2")
    assert not site.placement.no_slot_works(0.0)


def test_a_host_whose_agent_has_yet_to_connect_counts_as_untried() -> None:
    site = Site()
    site.observe("a:1")
    site.start()
    site.fail(1)
    site.observe("a:1 b:1", connect=False)
    assert not site.placement.no_slot_works(0.0)


def test_before_any_attempt_slots_may_work() -> None:
    site = Site()
    assert not site.placement.no_slot_works(0.0)
    site.observe("a:1")
    assert not site.placement.no_slot_works(0.0)


def test_booting_counts_only_workers_with_a_slot() -> None:
    site = Site()
    site.observe("a:1 b:1")
    assert not site.placement.booting()
    site.start()
    site.offer(1)
    assert site.placement.booting()
    site.observe("a:1")
    assert not site.placement.booting()
