"""A run's progress, from the workers' reports."""

from __future__ import annotations

import pytest

from edriver.driver.core.selection import plan_round
from edriver.driver.observe.progress import RATE_WINDOW, Commits, ProgressHistory, ProgressTracker, SampleCount, Written
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, timestamp


class Story:
    """A run in which a second passes when it is said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tracker = ProgressTracker(lambda: self.now)

    def round(self, n: int, version: Version, *workers: int) -> int:
        candidates = [Candidate(worker, "a", worker, version, StoreAddress("a", 4000)) for worker in workers]
        return self.tracker.assigned(plan_round(RoundId(1, n), 1, candidates, first=n == 1))

    def says(
        self, worker: int, n: int, boundaries: int, passed: float | None = None, **more: int
    ) -> agent_pb2.WorkerHeartbeat:
        message = notification_pb2.WorkerProgress(
            round_id=rounds_pb2.RoundId(incarnation=1, n=n),
            boundaries=boundaries,
            boundary_time=timestamp(1_000.0 + (self.now if passed is None else passed)),
            **more,  # type: ignore[arg-type]
        )
        whole = agent_pb2.WorkerHeartbeat(worker_id=worker, pid=1000 + worker, progress=message)
        self.tracker.record_progress(whole)
        return whole

    def progress(self) -> status_pb2.Progress:
        reported = self.tracker.progress()
        assert reported is not None
        return reported


def test_nothing_is_known_before_the_first_word() -> None:
    story = Story()
    assert story.tracker.progress() is None
    story.round(1, NO_VERSION, 1, 2)
    assert story.tracker.progress() is None


def test_steps_are_those_of_the_farthest_member_and_their_rate_is_rank_0s() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    for second in range(5):
        story.now = second
        story.says(1, 1, 20 * second)
        story.says(2, 1, 20 * second + 7)
    assert story.progress().steps == 87
    assert story.progress().step_rate == pytest.approx(20.0)
    story.now += RATE_WINDOW + 1
    assert story.progress().step_rate == 0.0


def test_what_rank_0_reports_belongs_to_its_own_steps() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    story.says(2, 1, 9)
    assert not story.progress().HasField("rank_0_steps")
    story.says(1, 1, 7)
    assert (story.progress().steps, story.progress().rank_0_steps) == (9, 7)
    story.round(2, Version(RoundId(1, 1), 10), 1, 2)
    story.says(2, 2, 4)
    assert (story.progress().steps, story.progress().rank_0_steps) == (14, 7)  # it reports that soon
    story.says(1, 2, 3)
    assert (story.progress().steps, story.progress().rank_0_steps) == (14, 13)


def test_a_rank_0_that_is_not_synced_yet_has_no_steps() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    story.says(1, 1, 7)
    story.round(2, Version(RoundId(1, 1), 10), 3)
    story.tracker.record_progress(agent_pb2.WorkerHeartbeat(worker_id=3, progress=notification_pb2.WorkerProgress()))
    assert (story.progress().steps, story.progress().HasField("rank_0_steps")) == (10, False)


def test_a_newcomer_has_no_rate_before_two_boundaries_of_its_round() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    boots = agent_pb2.WorkerHeartbeat(worker_id=1, pid=1001, progress=notification_pb2.WorkerProgress())
    story.tracker.record_progress(boots)
    rates = []
    for second in range(3):
        story.now = 1.0 + second
        story.says(1, 1, 20 * second)
        worker = status_pb2.WorkerStatus(worker_id=1)
        story.tracker.fill(worker)
        rates.append(worker.step_rate)
    assert rates == [0.0, 20.0, 20.0]


def test_a_rate_is_that_of_the_boundaries_however_late_reports_come() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    for second, delay in enumerate((0.0, 0.9, 0.1, 0.7, 0.0, 0.8, 0.9)):
        story.now = 2 * second + delay
        samples = {"epoch": 0, "samples_done": 640 * second, "samples": 10**6}
        story.says(1, 1, 20 * second, passed=2.0 * second, **samples)
    assert (story.progress().step_rate, story.progress().sample_rate) == (10.0, 320.0)


def test_the_rate_falls_while_the_same_boundary_is_reported_for_longer_than_a_step_may_take() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    for second in range(6):
        story.now = second
        story.says(1, 1, 10 * second)
    story.now = 5.5
    story.says(1, 1, 50, passed=5.0)
    assert story.progress().step_rate == 10.0
    story.now = 10.0
    story.says(1, 1, 50, passed=5.0)
    assert story.progress().step_rate == pytest.approx(50 / 9.9)


def test_a_worker_that_reports_rarely_keeps_its_rate_from_one_report_to_the_next() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    for second in range(0, 60, 12):
        story.now = second
        story.says(2, 1, 10 * second)
    story.now += 11.9
    worker = status_pb2.WorkerStatus(worker_id=2)
    story.tracker.fill(worker)
    assert worker.step_rate == 10.0
    story.now += 60.0
    story.tracker.fill(worker)
    assert worker.step_rate == 0.0


def test_what_a_worker_has_committed_counts_once_however_often_it_is_reported() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    story.says(1, 1, 10, commits=2, commit_bytes=100)
    story.says(1, 1, 12, commits=2, commit_bytes=100)
    story.says(1, 1, 11, commits=1, commit_bytes=50)  # of before, late
    story.says(1, 1, 20, commits=3, commit_bytes=150)
    assert (story.tracker.commits.count, story.tracker.commits.nbytes) == (3, 150)


def test_a_new_rank_0_on_a_host_whose_clock_is_behind_begins_the_rate_anew() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    for second in range(3):
        story.now = second
        story.says(1, 1, 10 * second)
    story.round(2, Version(RoundId(1, 1), 21), 2)
    story.says(2, 1, 21, passed=-50.0)  # a report of the old round
    assert story.progress().step_rate == 10.0
    for second in range(3, 6):
        story.now = second
        story.says(2, 2, 5 * (second - 2), passed=second - 50.0)
    assert story.progress().step_rate == 5.0


@pytest.mark.parametrize(
    ("places", "total"),
    [
        pytest.param([(0, 10, 100), (0, 60, 100), (1, 20, 100)], 120, id="into the next epoch"),
        pytest.param([(0, 10, 100), (3, 20, 100)], 320, id="over whole epochs between two reports"),
        pytest.param([(0, 60, 100), (0, 40, 100), (0, 80, 100)], 100, id="steps that are made again count twice"),
        pytest.param([(1, 20, 100), (0, 90, 100), (1, 20, 100)], 50, id="back into the epoch before"),
        pytest.param([(7, 0, 100), (7, 30, 100)], 30, id="from a checkpoint"),
    ],
)
def test_samples_are_counted_where_an_epoch_stands(places: list[tuple[int, int, int]], total: int) -> None:
    count = SampleCount()
    for place in places:
        count.at(*place)
    assert count.total == total


def test_steps_of_a_run_add_up_over_its_rounds() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    story.says(1, 1, 30)
    assert story.round(2, Version(RoundId(1, 1), 31), 1, 3) == 0
    assert story.progress().steps == 31
    story.says(1, 1, 31)  # reported before it received the new round
    assert story.progress().steps == 31
    story.says(1, 2, 4)
    assert story.progress().steps == 35


def test_steps_that_no_worker_holds_any_more_are_lost() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    story.says(1, 1, 30)
    story.says(2, 1, 32)
    story.tracker.gone(2)
    assert story.round(2, Version(RoundId(1, 1), 25), 1) == 7
    assert story.round(3, Version(RoundId(1, 1), 20), 1) == 5
    story.says(1, 3, 1)
    assert story.progress().steps == 21


def test_invalid_reports_are_refused() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    with pytest.raises(ValueError, match="it says that worker 1 has passed 18446744073709551615 boundaries"):
        story.says(1, 1, 2**64 - 1)
    assert story.tracker.progress() is None


def test_samples_and_what_the_script_reports() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    for second in range(4):
        story.now = second
        story.says(1, 1, second, epoch=second // 2, samples_done=500 * (second % 2), samples=1000)
    reported = story.progress()
    assert (reported.epoch, reported.samples_done, reported.samples) == (1, 500, 1000)
    assert reported.sample_rate == pytest.approx(500.0)


def test_what_is_known_of_a_worker() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1)
    reported = status_pb2.WorkerStatus(worker_id=1)
    story.tracker.fill(reported)
    assert (reported.pid, reported.HasField("version")) == (0, False)
    story.says(1, 1, 0)
    story.now = 2.0
    story.says(1, 1, 10)
    story.tracker.fill(reported)
    assert (reported.pid, reported.version.round_id.n, reported.version.boundaries, reported.step_rate) == (
        1001,
        1,
        10,
        5.0,
    )
    story.tracker.gone(1)
    story.round(2, Version(RoundId(1, 1), 10), 2)
    forgotten = status_pb2.WorkerStatus(worker_id=1)
    story.tracker.fill(forgotten)
    assert forgotten.pid == 0


def test_commits_of_a_run_add_up_over_its_workers() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    story.says(1, 1, 3, commits=3, commit_bytes=300)
    story.says(2, 1, 3, commits=2, commit_bytes=200)
    story.says(1, 1, 4, commits=4, commit_bytes=400)
    assert story.tracker.commits == Commits(count=6, nbytes=600)
    story.tracker.gone(2)
    story.round(2, Version(RoundId(1, 1), 4), 1, 3)
    story.says(3, 2, 1, commits=1, commit_bytes=100)
    assert story.tracker.commits == Commits(count=7, nbytes=700)
    story.says(3, 2, 1, commits=0, commit_bytes=0)
    assert story.tracker.commits == Commits(count=7, nbytes=700)


def test_a_history_of_what_rank_0_says() -> None:
    story = Story()
    history = ProgressHistory(story.tracker, lambda: 1000.0 + story.now)
    story.round(1, NO_VERSION, 1, 2)
    for tenth in range(35):
        story.now = tenth / 10
        for worker in (2, 1):
            message = story.says(worker, 1, tenth)
            history.record_progress(message)
    assert [(epoch_seconds(sample.time), sample.progress.steps) for sample in history.samples()] == [
        (1000.0, 0),
        (1001.0, 10),
        (1002.0, 20),
        (1003.0, 30),
    ]


def test_a_checkpoint_says_at_which_step_the_run_goes_on() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    story.says(1, 1, 70)
    candidates = [Candidate(3, "a", 0, NO_VERSION, StoreAddress("a", 4000), checkpoint=40)]
    lost = story.tracker.assigned(plan_round(RoundId(1, 2), 1, candidates, first=True))
    assert lost == 30
    story.says(3, 2, 5)
    assert story.progress().steps == 45


def test_a_run_that_begins_from_a_checkpoint_has_lost_nothing() -> None:
    story = Story()
    candidates = [Candidate(1, "a", 0, NO_VERSION, StoreAddress("a", 4000), checkpoint=400)]
    assert story.tracker.assigned(plan_round(RoundId(1, 1), 1, candidates, first=True)) == 0
    story.says(1, 1, 2)
    assert story.progress().steps == 402


def test_checkpoints_of_a_run_add_up_over_its_workers() -> None:
    story = Story()
    story.round(1, NO_VERSION, 1, 2)
    story.says(1, 1, 10, checkpoints=1, checkpoint_bytes=100, checkpoint_steps=10)
    story.says(1, 1, 20, checkpoints=2, checkpoint_bytes=200, checkpoint_steps=20, checkpoint_failures=1)
    story.says(2, 1, 20)
    story.says(2, 1, 30, checkpoints=1, checkpoint_bytes=100, checkpoint_steps=30)
    story.says(2, 1, 30, checkpoints=1, checkpoint_bytes=100, checkpoint_steps=30)
    assert story.tracker.checkpoints == Written(count=3, nbytes=300, failures=1, steps=30)


def test_nonsense_about_checkpoints_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoints"):
        Story().says(1, 1, 1, checkpoints=2**50)


def test_a_driver_that_takes_over_counts_what_the_one_before_has_written_as_made() -> None:
    story = Story()
    story.tracker.go_on_after(7)  # of no round: nothing follows
    story.round(1, NO_VERSION, 1, 2)
    story.tracker.go_on_after(30)
    story.tracker.go_on_after(0)  # nothing was written
    candidates = [Candidate(3, "a", 0, NO_VERSION, StoreAddress("a", 4000), checkpoint=20)]
    assert story.tracker.assigned(plan_round(RoundId(1, 2), 1, candidates, first=True)) == 10
