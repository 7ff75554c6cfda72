"""Which hosts are quarantined, for how long, and when one is used all the same."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.quarantine import Quarantine
from edriver.driver.core.placement import Placement
from edriver.driver.core.roster import Roster
from edriver.model.cause import Cause, CauseKind, Count, HostQuarantine, SlotTarget, WorkerName
from edriver.model.events import ExitReason, WorkerEnding, WorkerExited, loss_of
from edriver.model.records import Worker, WorkerState
from edriver.model.settings import Settings
from tests.unit.host_sets import hosts


class Site:
    """Hosts with connected agents, a worker in every slot, and their quarantine."""

    def __init__(self, answer: str, min_np: int = 1, draw: Callable[[], float] = lambda: 0.0) -> None:
        self.roster = Roster()
        self.roster.observe(hosts(answer))
        self.settings = Settings(np=max(min_np, 1), min_np=min_np, max_np=64)
        self.quarantine = Quarantine(self.settings, self.roster, draw)
        self.reported: list[Cause] = []
        self._workers = 0
        for record in self.roster.hosts.values():
            record.connected = True
            self.roster.host_changed(record)
            for slot in range(record.slots):
                self.start(record.name, slot)

    def start(self, host: str, slot: int) -> None:
        self._workers += 1
        self.roster.add(Worker(self._workers, host, slot, WorkerState.TRAINING))

    def fail(self, host: str, *slots: int, now: float = 0.0) -> None:
        """Workers of these slots fail, and others come in their place."""
        for slot in slots:
            worker = next(w for w in self.roster.on(host) if w.slot == slot)
            self.roster.remove(worker.worker_id)
            self.quarantine.worker_failed(worker, now)
            self.start(host, slot)

    def kill(self, host: str, *slots: int, now: float = 0.0, trained: bool = True) -> None:
        """Workers of these slots are killed from outside, and others come in their place."""
        for slot in slots:
            worker = next(w for w in self.roster.on(host) if w.slot == slot)
            worker.rank = 0 if trained else None
            self.roster.remove(worker.worker_id)
            self.quarantine.worker_killed(worker, now)
            self.start(host, slot)

    def left_out(self, now: float = 0.0) -> set[str]:
        self.reported += self.quarantine.review(now)
        return self.quarantine.excluded_hosts(now)


@pytest.mark.parametrize(
    ("answer", "failed", "left_out"),
    [
        pytest.param("a:2 b:2", [0, 1, 0, 1], {"a"}, id="twice-in-each-slot"),
        pytest.param("a:2 b:2", [0, 1, 0], set(), id="three-may-be-chance"),
        pytest.param("a:1 b:1", [0, 0, 0, 0], {"a"}, id="a-host-of-one-slot"),
        pytest.param("a:8 b:8", [0, 1, 2, 3, 4, 5, 6], set(), id="fewer-than-it-has-slots"),
        pytest.param("a:8 b:8", [0, 1, 2, 3, 4, 5, 6, 7], {"a"}, id="each-slot-once"),
        pytest.param("a:8 b:8", [3] * 8, set(), id="one-slot-is-not-the-host"),
        pytest.param("a:8 b:8", [0, 0, 1, 1, 2, 2, 3, 3], {"a"}, id="half-of-the-slots-are"),
        pytest.param("a:2", [0, 1] * 5, set(), id="nothing-to-compare-with"),
    ],
)
def test_a_host_whose_slots_fail_is_left_out(answer: str, failed: list[int], left_out: set[str]) -> None:
    site = Site(answer)
    site.fail("a", *failed)
    assert site.left_out() == left_out


def test_where_all_hosts_fail_none_is_to_blame() -> None:
    site = Site("a:2 b:2 c:2")
    for host in "cab" * 2:
        site.fail(host, 0, 1)
    assert site.left_out() == set()


def test_a_host_has_to_fail_three_times_as_often_as_the_others() -> None:
    site = Site("a:2 b:4")
    site.fail("b", 0, 1, 2)
    site.fail("a", 0, 1, 0, 1)  # 2 a slot, against three quarters
    assert site.left_out() == set()
    site.fail("a", 0)
    assert site.left_out() == {"a"}


def test_failures_of_long_ago_do_not_count() -> None:
    site = Site("a:2 b:2")
    site.fail("a", 0, 1, 0, now=0.0)
    site.fail("a", 1, now=601.0)
    assert site.left_out(601.0) == set()


def test_it_is_used_again_after_its_cooldown_and_left_alone_for_longer_the_next_time() -> None:
    site = Site("a:2 b:2")
    site.fail("a", 0, 1, 0, 1, now=0.0)
    assert site.left_out(9.9) == {"a"}
    assert site.left_out(10.0) == set()
    site.fail("a", 0, now=11.0)  # it is on probation: one is enough
    assert site.left_out(30.9) == {"a"}
    assert site.left_out(31.0) == set()
    over = Cause(CauseKind.COOLDOWN_OVER, host="a", detail=SlotTarget(None))
    assert [cause for cause in site.reported if cause == over or cause.kind is CauseKind.HOST_QUARANTINED] == [
        Cause(CauseKind.HOST_QUARANTINED, host="a", detail=HostQuarantine(10.0, 4, 2, 600.0, 0, 2)),
        over,
        Cause(CauseKind.HOST_QUARANTINED, host="a", detail=HostQuarantine(20.0, 5, 2, 600.0, 0, 2)),
        over,
    ]


def test_a_kill_from_outside_lets_no_slot_rest_and_no_hosts_cooldown_grow() -> None:
    site = Site("a:2 b:2", draw=lambda: 0.99)
    for n in range(7):
        site.kill("a", n % 2, now=1.0 + n)
        assert site.roster.hosts["a"].ready_slots(1.0 + n) == [0, 1]
    assert site.left_out(7.0) == {"a"}
    assert site.left_out(24.0) == set()  # the fourth had quarantined it, for less than 20 s
    for n in range(7):
        site.kill("a", 0, now=100.0 + 21 * n)
        assert site.left_out(100.0 + 21 * n) == {"a"}
        assert site.left_out(120.0 + 21 * n) == set()


@pytest.mark.parametrize(
    ("event", "outside"),
    [
        pytest.param(WorkerExited(1, -signal.SIGKILL), True, id="killed"),
        pytest.param(WorkerExited(1, -signal.SIGTERM), True, id="terminated"),
        pytest.param(WorkerExited(1, -signal.SIGSEGV), False, id="crashed"),
        pytest.param(WorkerExited(1, 128 + signal.SIGKILL), False, id="an-exit-code"),
        pytest.param(
            WorkerExited(1, -signal.SIGKILL, reason=ExitReason(CauseKind.OUT_OF_MEMORY)), False, id="out-of-memory"
        ),
        pytest.param(
            WorkerExited(1, -signal.SIGKILL, reason=ExitReason(CauseKind.MAYBE_OUT_OF_MEMORY)), False, id="perhaps-so"
        ),
        pytest.param(WorkerEnding(1), False, id="not-known-yet"),
    ],
)
def test_what_is_a_kill_from_outside(event: WorkerExited | WorkerEnding, outside: bool) -> None:
    assert loss_of(event, WorkerName(1, "a", 0, 0)).killed_from_outside is outside


def test_kills_on_all_hosts_blame_none_and_kills_make_no_failure_of_a_host_worse() -> None:
    site = Site("a:2 b:2")
    for n in range(8):
        site.kill("ab"[n % 2], n // 2 % 2, now=n)
    assert site.left_out(8.0) == set()
    site.fail("a", 0, 1, 0, now=9.0)
    assert site.left_out(9.0) == set()
    site.fail("a", 1, now=9.0)
    assert site.left_out(9.0) == {"a"}


def test_a_slot_whose_workers_are_killed_as_they_start_rests_ever_longer() -> None:
    site = Site("a:2 b:2")
    site.kill("a", 0, 0, 0, now=0.0, trained=False)
    assert site.roster.hosts["a"].ready_slots(1.9) == [1]
    assert site.roster.hosts["a"].ready_slots(2.0) == [0, 1]
    site.kill("a", 1, now=2.0, trained=False)
    assert site.left_out(2.0) == {"a"}


def test_the_end_of_a_slots_cooldown_is_not_reported_while_its_host_is_quarantined() -> None:
    site = Site("a:1 b:1")
    site.fail("a", 0, 0, 0, 0, now=0.0)
    assert site.left_out(5.0) == {"a"}  # its slot's own 4 s are over
    assert CauseKind.COOLDOWN_OVER not in {cause.kind for cause in site.reported}


def test_the_first_replacement_comes_at_once_and_without_a_word() -> None:
    site = Site("a:2 b:2")
    site.fail("a", 0)
    assert site.roster.hosts["a"].ready_slots(0.0) == [0, 1]
    assert (site.left_out(), site.reported) == (set(), [])


def test_a_host_is_used_all_the_same_if_the_others_do_not_make_up_min_np() -> None:
    site = Site("a:2 b:2", min_np=3)
    site.fail("a", 0, 1, 0, 1)
    assert site.left_out(0.0) == {"a"}  # its slots rest, and those that train there do
    for worker in list(site.roster.on("a")):
        site.roster.remove(worker.worker_id)
    assert site.left_out(1.0) == set()
    assert site.reported[-1] == Cause(CauseKind.QUARANTINE_WAIVED, host="a", detail=Count(3))
    assert site.left_out(2.0) == set()
    assert site.reported[-1] != site.reported[-2]  # said once


def test_of_two_the_one_whose_cooldown_ends_first_is_used() -> None:
    site = Site("a:2 b:2 c:2 d:2", min_np=5)
    site.fail("b", 0, 1, 0, 1, now=0.0)
    site.fail("a", 0, 1, 0, 1, 0, now=3.0)
    for record in site.roster.hosts.values():
        for worker in list(site.roster.on(record.name)):
            site.roster.remove(worker.worker_id)
    assert site.left_out(8.0) == {"a"}


def test_jitter_comes_from_the_generator() -> None:
    def end(draw: Callable[[], float]) -> float:
        site = Site("a:2 b:2", draw=draw)
        site.fail("a", 0, 1, 0, 1)
        return site.roster.hosts["a"].rest.free_at

    assert 10 <= end(random.Random(1).random) < 20
    assert end(random.Random(1).random) == end(random.Random(1).random)
    assert end(random.Random(1).random) != end(random.Random(2).random)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("min_np", [1, 2, 3, 4])
def test_random_kills_do_not_bring_a_run_to_a_standstill(seed: int, min_np: int) -> None:
    """A thousand kills, one every 2 s. The slots' own cooldowns are turned off, as `make soak` does."""
    rng = random.Random(seed)
    site = Site("a:2 b:2", min_np, draw=rng.random)
    placement = Placement(site.settings, site.roster, NewSizes(site.settings, site.roster), draw=rng.random)
    for worker_id in list(site.roster.workers):
        site.roster.remove(worker_id)
    list(placement.start_workers(0.0, training=0, looks_after=None))
    missing = 0
    for kill in range(1000):
        now = 2.0 * kill
        worker = rng.choice(list(site.roster.workers.values()))
        placement.quarantine.worker_failed(worker, now)
        site.roster.remove(worker.worker_id)
        for record in site.roster.hosts.values():
            for place in record.places.values():
                place.free_at = now
        list(placement.quarantine.review(now))
        list(placement.start_workers(now, training=2, looks_after=None))
        missing += 4 - len(site.roster.workers)
        assert len(site.roster.workers) >= min_np
    assert missing < 0.05 * 4 * 1000
