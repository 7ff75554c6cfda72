"""What a worker tells of its progress."""

from __future__ import annotations

from dataclasses import replace

import pytest

import edriver
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.model.stall_limits import DEFAULT_STALL_LIMITS
from edriver.worker import context
from edriver.worker.reports import SamplesDone
from edriver.worker.rounds.participant import Participant
from edriver.worker.rounds.progress_watch import ProgressWatch
from edriver.worker.rounds.step_times import StepTimer


@pytest.fixture(autouse=True)
def rank_0() -> None:
    context.current.place.enter(SINGLE_WORKER)


class Resumed(edriver.ObjectState):
    """As a script makes it, before its first sync: of an epoch that is not the run's."""

    def samples_done(self) -> SamplesDone:
        return SamplesDone(0, 17, 480)


def test_what_a_worker_holds_before_its_first_sync_is_not_the_runs() -> None:
    times = StepTimer()
    watch = ProgressWatch(context.current, Participant(), times, DEFAULT_STALL_LIMITS, lambda report: None)
    watch.state = Resumed()
    watch.state.report(loss=3.0)
    before = watch.progress()
    assert (before.HasField("epoch"), dict(before.reported)) == (False, {})
    times.synced(RoundId(1, 1))
    times.passed(watch.reported)
    after = watch.progress()
    assert (after.epoch, after.samples_done, after.samples, dict(after.reported)) == (0, 17, 480, {"loss": 3.0})
    watch.state = None
    assert watch.progress().reported == after.reported
    assert watch.progress().samples_done == 17


@pytest.mark.parametrize(("rank", "reported"), [(0, {f"value {n}": float(n) for n in range(100)}), (1, {})])
def test_what_the_script_reports_in_rank_0_is_sent(rank: int, reported: dict[str, float]) -> None:
    context.current.place.enter(replace(SINGLE_WORKER, rank=rank))
    times = StepTimer()
    watch = ProgressWatch(context.current, Participant(), times, DEFAULT_STALL_LIMITS, lambda report: None)
    watch.state = edriver.ObjectState()
    for number in range(100):
        watch.state.report(**{f"value {number}": float(number)})
    times.synced(RoundId(1, 1))
    times.passed(watch.reported)
    assert dict(watch.progress().reported) == reported


def test_values_belong_to_the_boundary_that_follows_them() -> None:
    times = StepTimer()
    watch = ProgressWatch(context.current, Participant(), times, DEFAULT_STALL_LIMITS, lambda report: None)
    watch.state = edriver.ObjectState()
    times.synced(RoundId(1, 1))
    seen = []
    for step in (1, 2, 3):
        watch.state.report(loss=float(step))
        seen.append((watch.progress().boundaries, dict(watch.progress().reported)))
        times.passed(watch.reported)
        seen.append((watch.progress().boundaries, dict(watch.progress().reported)))
    pairs = [(boundaries, {"loss": float(boundaries)} if boundaries else {}) for boundaries in (0, 1, 1, 2, 2, 3)]
    assert seen == pairs
    watch.state.report(accuracy=0.5)
    times.ended(watch.reported)
    watch.state = None
    assert dict(watch.progress().reported) == {"loss": 3.0, "accuracy": 0.5}
