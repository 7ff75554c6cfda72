"""How often agents send heartbeats, and what of their workers' progress these have, by the size of the run."""

from __future__ import annotations

import pytest

from edriver.agent.progress_reports import ProgressReports, RoundReports
from edriver.driver.agents.periods import LARGE_RUN_PERIOD, SMALL_RUN, heartbeat_of, silence_within
from edriver.driver.agents.registry import AGENT_LEASE
from edriver.v1 import agent_pb2, notification_pb2, pace_pb2, rounds_pb2
from edriver.wire.conversion import span_seconds


@pytest.mark.parametrize("workers", [1, 400, 8000])
def test_a_small_run_hears_everything_every_second(workers: int) -> None:
    assert heartbeat_of(SMALL_RUN, workers) == agent_pb2.Heartbeat()


@pytest.mark.parametrize(
    ("agents", "workers", "progress"),
    [
        pytest.param(SMALL_RUN + 1, 200, 0.0, id="all that is new"),
        pytest.param(1000, 1000, 4.0, id="one worker on each host"),
        pytest.param(1000, 8000, 32.0, id="a thousand hosts of eight"),
    ],
)
def test_a_large_run_hears_less_of_each(agents: int, workers: int, progress: float) -> None:
    asked = heartbeat_of(agents, workers)
    assert span_seconds(asked.heartbeat_period) == LARGE_RUN_PERIOD
    assert span_seconds(asked.progress_period) == progress


def test_two_heartbeats_fit_into_an_agents_lease_at_any_size() -> None:
    assert 2 * LARGE_RUN_PERIOD < AGENT_LEASE


@pytest.mark.parametrize(("lease", "silence"), [(600.0, 30), (20.0, 4), (5.0, 1), (1.0, 1)])
def test_the_driver_says_something_five_times_in_its_lease(lease: float, silence: int) -> None:
    assert silence_within(lease) == silence


def progress(boundaries: int, n: int = 1, place: str | None = None) -> notification_pb2.WorkerProgress:
    """Of a worker; with a place, it waits there."""
    made = notification_pb2.WorkerProgress(round_id=rounds_pb2.RoundId(incarnation=1, n=n), boundaries=boundaries)
    if place is not None:
        made.standing.CopyFrom(notification_pb2.Standing(activity=pace_pb2.WORKER_ACTIVITY_WAITING, place=place))
    return made


def sent(reports: ProgressReports, said: list[notification_pb2.WorkerProgress], period: float) -> list[bool]:
    """Which of a worker's progress is sent, where it says this from one second to the next."""
    return [reports.is_due(each, period, float(second)) for second, each in enumerate(said)]


def test_without_a_period_all_progress_is_sent() -> None:
    assert all(sent(ProgressReports(), [progress(1), progress(1), progress(2)], 0.0))


def test_progress_is_sent_once_in_a_period() -> None:
    due = sent(ProgressReports(), [progress(n) for n in range(9)], 4.0)
    assert [second for second, each in enumerate(due) if each] == [0, 4, 8]


def test_that_of_rank_0_always_is() -> None:
    reports = ProgressReports()
    reports.leads = True
    assert all(sent(reports, [progress(n) for n in range(9)], 4.0))


def test_a_new_round_and_where_a_worker_stands_are_known_at_once() -> None:
    said = [
        progress(5),
        progress(6),
        progress(0, n=2),  # it holds the state of another round
        progress(1, n=2),
        progress(1, n=2, place="train.py:3"),  # it stands,
        progress(1, n=2, place="train.py:3"),
        progress(1, n=2, place="train.py:7"),  # elsewhere,
        progress(2, n=2),  # and goes on
        progress(3, n=2),
    ]
    assert sent(ProgressReports(), said, 60.0) == [True, False, True, False, True, False, True, True, False]


def test_what_may_not_have_arrived_is_sent_again() -> None:
    reports = ProgressReports()
    assert sent(reports, [progress(1), progress(2)], 60.0) == [True, False]
    reports.forget()
    assert reports.is_due(progress(2), 60.0, 2.0)


def test_what_a_report_has_brought_is_not_sent_again_in_the_next_heartbeat() -> None:
    reports, worker = RoundReports(), ProgressReports()
    first = notification_pb2.Report(
        first_boundary_passed=notification_pb2.FirstBoundaryPassed(), progress=progress(1, n=2)
    )
    reports.shorten(first, worker, 0.0)
    assert first.HasField("progress")
    assert worker.is_due(progress(1, n=2), 60.0, 1.0), "no heartbeat has had the worker's process yet"
    assert sent(worker, [progress(1, n=2), progress(1, n=3)], 60.0) == [False, True]
    first.progress.CopyFrom(progress(1, n=4))
    reports.shorten(first, worker, 2.0)
    assert not worker.is_due(progress(2, n=4), 60.0, 3.0)
    assert worker.is_due(progress(9, n=4), 60.0, 62.0)


def returns(reports: RoundReports, said: notification_pb2.WorkerProgress, leads: bool = False) -> bool:
    """Whether the progress is sent with which a worker comes back from a round."""
    worker = ProgressReports()
    worker.leads = leads
    report = notification_pb2.Report(worker_waiting=notification_pb2.WorkerWaiting(ordinal=1), progress=said)
    reports.shorten(report, worker, 0.0)
    assert report.worker_waiting.ordinal == 1
    assert not report.HasField("progress") or report.progress == said
    return report.HasField("progress")


def test_of_workers_that_come_back_from_a_round_the_farthest_say_how_far_they_are() -> None:
    reports = RoundReports()
    assert [returns(reports, progress(boundaries)) for boundaries in (5, 5, 4, 6, 6)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert returns(reports, progress(2), leads=True), "what rank 0 reports is what the run shows"
    assert returns(reports, progress(1, n=2)), "another round"
    waited = progress(1, n=2)
    waited.declared_duration.seconds = 3
    assert [returns(reports, waited) for _ in range(2)] == [True, False]


def test_other_reports_keep_their_progress() -> None:
    reports = RoundReports()
    for _ in range(2):
        done = notification_pb2.Report(worker_done=notification_pb2.WorkerDone(), progress=progress(5))
        reports.shorten(done, ProgressReports(), 0.0)
        assert done.HasField("progress")
