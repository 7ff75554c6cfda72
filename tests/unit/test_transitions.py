"""The tables of transitions: what they refuse, and that the diagrams in the documentation show them."""

from __future__ import annotations

import pytest

from edriver.driver.core.roster import Roster
from edriver.driver.core.round import ROUND_TRANSITIONS, Round, RoundState, RoundStep
from edriver.driver.core.selection import plan_round
from edriver.model import actions, events
from edriver.model.cause import Cause, CauseKind
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.records import WORKER_TRANSITIONS, Worker, WorkerState, WorkerStep
from edriver.model.store_address import StoreAddress
from edriver.model.transitions import IllegalTransitionError
from tests.unit.host_sets import hosts

LOST = Cause(CauseKind.COLLECTIVE_FAILED)


def a_round() -> Round:
    candidates = [Candidate(worker, "a", worker - 1, NO_VERSION, StoreAddress("a", 1)) for worker in (1, 2, 3)]
    return Round(plan_round(RoundId(1, 1), 1, candidates, first=True), {1, 2, 3}, newcomers_start_at=1.0)


@pytest.mark.parametrize("step", WorkerStep)
def test_a_worker_that_stops_never_does_anything_else(step: WorkerStep) -> None:
    roster = Roster()
    roster.observe(hosts("a:1"))
    worker = Worker(1, "a", 0)
    roster.add(worker)
    roster.move(worker, WorkerStep.STOP)
    if step is not WorkerStep.STOP:
        with pytest.raises(IllegalTransitionError, match="worker 1 is stopping"):
            roster.move(worker, step)
    assert worker.state is WorkerState.STOPPING


def test_a_worker_that_has_not_offered_a_state_joins_no_round() -> None:
    roster = Roster()
    roster.observe(hosts("a:1"))
    worker = Worker(1, "a", 0)
    roster.add(worker)
    with pytest.raises(IllegalTransitionError, match="worker 1 is booting: 'RoundPlan' cannot happen to it"):
        roster.seat(worker, rank=0, looks_after=None)


def test_a_round_ends_once() -> None:
    current = a_round()
    current.abort(LOST, rejoin_deadline=30.0)
    for again in (current.finish, lambda: current.abort(LOST, 30.0), lambda: current.ask(1.0)):
        with pytest.raises(IllegalTransitionError, match=r"round 1\.1 is aborted"):
            again()


def test_no_boundary_is_agreed_before_all_have_been_asked() -> None:
    current = a_round()
    with pytest.raises(AssertionError, match="its members have been asked"):
        current.stop_at_boundary(LOST, deadline=1.0, counted=True)
    current.ask(deadline=1.0)
    current.go_on()
    assert current.state is RoundState.RUNNING
    assert current.interrupt is None


@pytest.mark.parametrize("table", [WORKER_TRANSITIONS, ROUND_TRANSITIONS], ids=["worker", "round"])
def test_steps_have_the_names_of_events_and_actions(
    table: dict[tuple[WorkerStep | RoundStep, WorkerStep | RoundStep], object],
) -> None:
    known = {*vars(events), *vars(actions)}
    for _, step in table:
        names = [name for name in step.value.replace(",", "").split() if name[0].isupper()]
        assert names
        assert set(names) <= known, f"{step} is no event or action"
