from __future__ import annotations

import itertools

import pytest

from edriver.driver.core.roster import Roster
from edriver.driver.observe.cause_text import Line
from edriver.driver.observe.console.announcements import Announcements, lost_steps_text
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind, Cause, CauseKind, Exit, Shortage, WorkerName
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import RoundId, Version
from edriver.model.plan import RoundPlan
from edriver.model.records import Worker, WorkerState
from edriver.model.shards import NO_SHARDING, Sharding
from edriver.model.store_address import StoreAddress

ROUND = RoundId(1, 2)
WORKER = WorkerName(3, "a", 0, 1)
WAITS = Cause(CauseKind.BOOT_AWAITED)


def roster(state: WorkerState = WorkerState.TRAINING) -> Roster:
    """Worker 3 is rank 1 on host a, whose agent is number 7."""
    made = Roster()
    made.observe(HostSet((Host("a", 1),)))
    made.hosts["a"].agent_id = 7
    made.workers[3] = Worker(3, "a", 0, state, rank=1)
    return made


def test_a_loss_that_ends_a_round_is_one_line_and_the_reason_follows() -> None:
    announcements = Announcements()
    loss = announcements.loss(events.WorkerExited(3, -9), roster())
    cause = Cause(CauseKind.KILLED, WORKER, detail=Exit(-9), preempted=True)
    abort = actions.Abort((4,), ROUND, cause)
    assert list(announcements.lines(loss, [abort, actions.Explain(WAITS)])) == [Line(cause, ROUND), Line(WAITS)]


def test_a_loss_beside_the_end_of_a_round_by_something_else_is_a_line_of_its_own() -> None:
    announcements = Announcements()
    loss = announcements.loss(events.WorkerExited(3, -9), roster())
    cause = Cause(CauseKind.ENDED, WORKER)
    lines = list(announcements.lines(loss, [actions.Abort((4,), ROUND, cause)]))
    assert lines == [Line(Cause(CauseKind.KILLED, WORKER, detail=Exit(-9))), Line(cause, ROUND)]


def test_a_loss_outside_a_round_is_a_line_of_its_own() -> None:
    announcements = Announcements()
    loss = announcements.loss(events.WorkerExited(3, 1), roster(WorkerState.BOOTING))
    assert list(announcements.lines(loss, [])) == [Line(Cause(CauseKind.EXITED, WORKER, detail=Exit(1)))]


def test_ends_that_were_asked_for_are_not_losses() -> None:
    announcements = Announcements()
    assert announcements.loss(events.WorkerExited(3, -15), roster(WorkerState.STOPPING)) is None
    assert announcements.loss(events.WorkerExited(3, 0), roster(WorkerState.FINISHED)) is None
    assert announcements.loss(events.WorkerExited(9, 1), roster()) is None
    assert (
        announcements.loss(
            events.AgentLost("a", 6, AgentFault(AgentFaultKind.ENDED, "its agent exited with code 0")), roster()
        )
        is None
    )


def test_an_exit_with_0_too_early_is_a_loss() -> None:
    announcements = Announcements()
    loss = announcements.loss(events.WorkerExited(3, 0), roster())
    assert loss == Cause(CauseKind.EXITED, WORKER, detail=Exit(0))


def test_an_unusable_host_is_reported_once_until_it_is_usable() -> None:
    announcements = Announcements()
    lost = events.AgentLost("a", 7, AgentFault(AgentFaultKind.ENDED, "no route"))
    assert announcements.loss(lost, roster()) == Cause(
        CauseKind.HOST_UNUSED, host="a", detail=AgentFault(AgentFaultKind.ENDED, "no route")
    )
    assert announcements.loss(lost, roster()) is None
    assert announcements.loss(events.AgentConnected("a", 7), roster()) is None
    connected = roster()
    connected.hosts["a"].connected = True
    assert announcements.loss(lost, connected) == Cause(
        CauseKind.HOST_LOST, host="a", detail=AgentFault(AgentFaultKind.ENDED, "no route")
    )


@pytest.mark.parametrize(
    ("drained", "undrained", "said"),
    [
        pytest.param((None,), None, True, id="a drained host"),
        pytest.param((), None, False, id="a host that is not drained"),
        pytest.param((0,), None, True, id="a host with a drained slot"),
        pytest.param((0,), 0, True, id="a drained slot"),
        pytest.param((0,), 1, False, id="a slot beside a drained one"),
    ],
)
def test_an_undrain_is_announced_only_if_it_changes_something(
    drained: tuple[int | None, ...], undrained: int | None, said: bool
) -> None:
    known = roster()
    (record,) = known.hosts.values()
    for slot in drained:
        known.drain(record, slot, True)
    found = Announcements().loss(events.UndrainRequested(record.name, undrained), known)
    assert (found is not None) is said


def plan(
    replica_size: int = 1, checkpoint: int = 0, steps_lost: int = 0, sharding: Sharding | None = None
) -> RoundPlan:
    return RoundPlan(
        RoundId(1, 3),
        1,
        Version(RoundId(1, 1), 5),
        (),
        StoreAddress("a", 1),
        (),
        replica_size=replica_size,
        checkpoint=checkpoint,
        steps_lost=steps_lost,
        sharding=sharding,
    )


OLDER = "the newest state is no longer held at all positions: training continues from an older one; "


@pytest.mark.parametrize(
    ("formed", "lost", "text"),
    [
        pytest.param(plan(), 1, "", id="the only worker that had made the step is lost"),
        pytest.param(
            plan(checkpoint=9), 3, "no worker holds the state: it is loaded from disk; 3 steps lost", id="disk"
        ),
        pytest.param(
            plan(2, checkpoint=9),
            1,
            "not all positions of the state are held: it is loaded from disk; 1 step lost",
            id="a position from disk",
        ),
        pytest.param(plan(2), 0, "", id="nothing is lost"),
        pytest.param(plan(2), 12, f"{OLDER}12 steps lost", id="spares hold an older state"),
        pytest.param(plan(sharding=NO_SHARDING), 12, f"{OLDER}12 steps lost", id="one replica"),
        pytest.param(plan(2, steps_lost=4), 4, "", id="the round says so itself"),
    ],
)
def test_steps_that_are_lost_with_their_holders_are_announced(formed: RoundPlan, lost: int, text: str) -> None:
    assert lost_steps_text(formed, lost, at_least=False) == text


def test_steps_that_another_driver_has_not_heard_of_are_said_to_be_missing() -> None:
    assert lost_steps_text(plan(2), 12, at_least=True) == f"{OLDER}at least 12 steps lost"


def awaited(found: int, needed: int, *troubles: Cause) -> Cause:
    return Cause(CauseKind.WORKERS_AWAITED, detail=Shortage(found, needed, troubles=troubles))


def announced(causes: list[Cause]) -> list[Cause]:
    announcements = Announcements()
    return [line.cause for cause in causes for line in announcements.lines(None, [actions.Explain(cause)])]


def test_of_few_workers_each_one_is_announced() -> None:
    causes = [awaited(found, 10) for found in range(10)]
    assert announced(causes) == causes


def test_of_thousands_of_workers_some_are_announced_and_the_last_nine_each() -> None:
    counts = [cause.detail.found for cause in announced([awaited(found, 8000) for found in range(8000)])]  # type: ignore[union-attr]
    assert len(counts) < 90
    assert counts[-9:] == list(range(7991, 8000))
    gaps = [(after - before, 8000 - before) for before, after in itertools.pairwise(counts)]
    assert all(gap <= missing * 0.1 + 1 for gap, missing in gaps)


def test_what_else_changes_is_announced_and_so_is_a_great_loss() -> None:
    trouble = Cause(CauseKind.HOST_UNUSED, host="a")
    causes = [awaited(50, 100), awaited(51, 100), awaited(51, 100, trouble), awaited(46, 100, trouble), WAITS]
    causes += [awaited(46, 100, trouble)]
    assert announced(causes) == [causes[at] for at in (0, 2, 3, 4, 5)]
