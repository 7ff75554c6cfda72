"""Events in any order: what the core keeps in indexes is what a look through all of it finds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from edriver.driver.core.failures.quarantine import Quarantine
from edriver.driver.core.roster import Roster
from edriver.model.records import WORKER_TRANSITIONS, HostRecord, Worker, WorkerStep
from tests.sim.random_events import RandomEvents

STEPS = 100


@pytest.mark.parametrize("seeds", [1000, pytest.param(20000, marks=pytest.mark.long)])
def test_indexes_hold_what_a_scan_finds(seeds: int) -> None:
    for seed in range(seeds):
        try:
            RandomEvents(seed).run(STEPS)
        except AssertionError as error:
            pytest.fail(f"replay with python -m tests.sim.random_events --first {seed} --seeds 1: {error}")


def _hosts_are_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "_place_workers", lambda self, record: None)


def _the_gone_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "remove", lambda self, worker_id: self.workers.pop(worker_id))


def _states_are_set_in_passing(patch: pytest.MonkeyPatch) -> None:
    def move(self: Roster, worker: Worker, step: WorkerStep) -> None:
        worker.state = WORKER_TRANSITIONS[worker.state, step]

    patch.setattr(Roster, "move", move)


def _an_exclusion_has_no_end(patch: pytest.MonkeyPatch) -> None:
    def exclude(self: Quarantine, record: HostRecord, until: float) -> None:
        record.rest.free_at = until

    patch.setattr(Quarantine, "exclude", exclude)


def _a_failed_agent_has_no_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quarantine, "next_deadline", lambda self, now: math.inf)


def _the_roster_does_not_hear_who_is_done(patch: pytest.MonkeyPatch) -> None:
    original = Roster.move

    def move(self: Roster, worker: Worker, step: WorkerStep) -> None:
        if step is not WorkerStep.RETURN:
            original(self, worker, step)

    patch.setattr(Roster, "move", move)


FAULTS = (
    _the_roster_does_not_hear_who_is_done,
    _hosts_are_not_looked_at_again,
    _the_gone_are_kept,
    _states_are_set_in_passing,
    _an_exclusion_has_no_end,
    _a_failed_agent_has_no_pause,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_an_index_that_is_not_kept_is_noticed(fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        for seed in range(2000):
            try:
                RandomEvents(seed).run(STEPS)
            except (AssertionError, LookupError):
                return
    pytest.fail("2000 seeds do not notice it")
