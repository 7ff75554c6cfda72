"""How long steps take, and when none was made for too long."""

from __future__ import annotations

import random

import pytest

from edriver.model.ids import RoundId
from edriver.model.stall_limits import Phase
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import epoch_seconds, round_id_of, span_seconds
from edriver.worker.rounds import step_times
from edriver.worker.rounds.step_times import MIN_STEPS_CONSIDERED, STEPS_CONSIDERED, StepTimer

AHEAD = 1_700_000_000.0
"""Seconds that the wall clock is ahead of the monotonic one."""

NOTHING = {"boundaries": 0, "trained": 0.0, "stalled": 0.0}


class Story:
    """A worker's training thread, whose clock stands at 10 when it begins."""

    def __init__(self) -> None:
        self.now = 10.0
        self.times = StepTimer(lambda: self.now, lambda: self.now + AHEAD)

    def synced(self, n: int = 1) -> None:
        self.times.synced(RoundId(1, n))

    def step(self, seconds: float) -> None:
        self.now += seconds
        self.times.passed()

    def steps(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.step(seconds)

    def phase(self, phase: Phase, seconds: float) -> None:
        """As the script declares it with `edriver.phase`."""
        self.times.entered(phase)
        self.now += seconds
        self.times.entered(Phase.STEP)

    def filled(self) -> pb.WorkerProgress:
        progress = pb.WorkerProgress()
        self.times.fill(progress)
        return progress

    def reported(self) -> dict[str, float]:
        """What is reported of the round's time."""
        progress = self.filled()
        return {
            "boundaries": progress.boundaries,
            "trained": round(span_seconds(progress.training_duration), 4),
            "stalled": round(span_seconds(progress.stalled_duration), 4),
        }

    def stall(self) -> tuple[float, float, int] | None:
        """The last one: when it began by the monotonic clock, its length, and its boundary."""
        progress = self.filled()
        if not progress.HasField("last_stall"):
            return None
        stall = progress.last_stall
        start, length = epoch_seconds(stall.start_time) - AHEAD, span_seconds(stall.duration)
        return round(start, 4), round(length, 4), stall.boundary

    def usual(self) -> float | None:
        progress = self.filled()
        return span_seconds(progress.usual_step) if progress.HasField("usual_step") else None


def usual_steps_of(seconds: float) -> Story:
    """A round in which ten steps have taken so long."""
    story = Story()
    story.synced()
    story.steps(10, seconds)
    return story


def test_before_the_first_sync_nothing_is_known() -> None:
    story = Story()
    story.phase(Phase.INIT, 5.0)
    progress = story.filled()
    assert round_id_of(progress.round_id) == (0, 0)
    assert [field.name for field, _ in progress.ListFields()] == ["round_id"]


def test_steps() -> None:
    story = Story()
    story.synced(n=3)
    assert story.reported() == NOTHING
    assert epoch_seconds(story.filled().boundary_time) == AHEAD + 10.0
    story.steps(4, 0.5)
    story.now += 0.25
    progress = story.filled()
    assert round_id_of(progress.round_id) == (1, 3)
    assert epoch_seconds(progress.boundary_time) == AHEAD + 12.0
    assert story.reported() == {"boundaries": 4, "trained": 2.0, "stalled": 0.0}
    assert (story.usual(), story.stall()) == (0.5, None)


def test_too_few_steps_have_no_usual_length() -> None:
    story = Story()
    story.synced()
    story.steps(MIN_STEPS_CONSIDERED, 0.5)  # the first one does not count
    assert story.usual() is None
    story.step(100.0)
    assert story.usual() == 0.5
    assert story.reported() == {"boundaries": 4, "trained": 101.5, "stalled": 0.0}


def test_the_first_step_of_a_round_is_no_usual_one() -> None:
    story = Story()
    story.synced()
    story.step(60.0)
    story.steps(2, 0.5)
    assert story.usual() is None
    story.steps(1, 0.7)
    assert story.usual() == 0.5
    story.synced(n=2)
    for n in range(3, 3 + STEPS_CONSIDERED):
        story.step(60.0)
        story.synced(n)
    assert story.usual() == 0.5


@pytest.mark.parametrize(
    ("usual", "step", "stalled"),
    [
        pytest.param(0.125, 1.125, 0.0, id="a-second-more"),
        pytest.param(0.125, 1.126, 1.001, id="more-than-a-second-more"),
        pytest.param(0.25, 1.25, 0.0, id="both-limits-are-one"),
        pytest.param(2.0, 10.0, 0.0, id="five-times"),
        pytest.param(2.0, 10.001, 8.001, id="more-than-five-times"),
        pytest.param(2.0, 3.5, 0.0, id="a-second-more-of-long-steps"),
        pytest.param(0.125, 0.0, 0.0, id="none"),
    ],
)
def test_what_takes_much_longer_is_a_usual_step_and_a_stall(usual: float, step: float, stalled: float) -> None:
    story = usual_steps_of(usual)
    story.step(step)
    assert story.reported() == {"boundaries": 11, "trained": 10 * usual + step - stalled, "stalled": stalled}
    assert story.stall() == ((round(story.now - stalled, 4), stalled, 11) if stalled else None)


def test_stalls_of_a_round_add_up_and_the_last_one_is_told() -> None:
    story = usual_steps_of(0.5)
    story.step(30.5)
    story.steps(3, 0.5)
    assert story.stall() == (15.5, 30.0, 11)
    story.step(10.5)
    story.steps(3, 0.5)
    assert story.stall() == (47.5, 10.0, 15)
    assert story.reported() == {"boundaries": 18, "trained": 9.0, "stalled": 40.0}


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.SAVE])
def test_what_is_declared_is_no_stall(phase: Phase) -> None:
    story = usual_steps_of(0.5)
    story.now += 0.2
    story.phase(phase, 100.0)
    story.step(0.3)
    assert story.reported() == {"boundaries": 11, "trained": 105.5, "stalled": 0.0}
    assert story.usual() == 0.5
    story.phase(phase, 50.0)
    story.phase(phase, 50.0)
    story.step(20.5)
    assert story.reported() == {"boundaries": 12, "trained": 206.0, "stalled": 20.0}
    assert story.stall() == (story.now - 20.0, 20.0, 12)


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.COMMIT, Phase.STEP])
def test_other_phases_may_be_stalls(phase: Phase) -> None:
    story = usual_steps_of(0.5)
    story.phase(phase, 100.0)
    story.step(0.5)
    assert story.reported() == {"boundaries": 11, "trained": 5.5, "stalled": 100.0}


def test_one_declared_phase_follows_the_other() -> None:
    story = usual_steps_of(0.5)
    story.times.entered(Phase.EVAL)
    story.now += 40.0
    story.phase(Phase.SAVE, 60.0)
    story.step(0.5)
    assert story.reported() == {"boundaries": 11, "trained": 105.5, "stalled": 0.0}


def test_what_is_declared_is_told_while_it_goes_on() -> None:
    """The driver, which sees no boundary, must not take it for a stall."""
    story = usual_steps_of(0.1)
    story.now += 1.0
    story.times.entered(Phase.EVAL)
    story.now += 30.0
    assert span_seconds(story.filled().declared_duration) == 30.0
    story.now += 30.0
    story.times.entered(Phase.STEP)
    story.now += 5.0
    assert span_seconds(story.filled().declared_duration) == 60.0
    story.times.passed()
    assert span_seconds(story.filled().declared_duration) == 0.0
    story.times.entered(Phase.SAVE)
    story.now += 7.0
    story.times.passed()
    story.now += 2.0
    assert span_seconds(story.filled().declared_duration) == 2.0


def test_an_evaluation_may_go_on_across_boundaries() -> None:
    story = usual_steps_of(0.5)
    story.times.entered(Phase.EVAL)
    story.step(30.0)
    story.step(30.0)
    story.now += 30.0
    story.times.entered(Phase.STEP)
    story.step(0.5)
    assert story.reported() == {"boundaries": 13, "trained": 95.5, "stalled": 0.0}
    story.step(30.5)
    assert story.reported() == {"boundaries": 14, "trained": 96.0, "stalled": 30.0}


def test_what_was_declared_before_the_sync_is_not_of_the_round() -> None:
    story = usual_steps_of(0.5)
    story.phase(Phase.SAVE, 100.0)
    story.synced(n=2)
    story.step(30.5)
    assert story.reported() == {"boundaries": 1, "trained": 0.5, "stalled": 30.0}
    story.times.entered(Phase.EVAL)
    story.now += 100.0
    story.synced(n=3)
    story.now += 2.0
    story.times.entered(Phase.STEP)
    story.step(30.5)
    assert story.reported() == {"boundaries": 1, "trained": 2.5, "stalled": 30.0}


def test_a_round_begins_with_its_sync_and_keeps_the_usual_step() -> None:
    story = usual_steps_of(0.5)
    story.step(30.5)
    story.now += 7.0
    story.synced(n=2)
    progress = story.filled()
    assert round_id_of(progress.round_id) == (1, 2)
    assert epoch_seconds(progress.boundary_time) == AHEAD + story.now
    assert story.reported() == NOTHING
    assert (story.usual(), story.stall()) == (0.5, None)
    story.step(4.5)
    assert story.reported() == {"boundaries": 1, "trained": 0.5, "stalled": 4.0}


@pytest.mark.parametrize("seconds", [1.7, 30.0])
def test_steps_that_become_slower_for_good_are_believed_after_half_of_those_considered(seconds: float) -> None:
    story = usual_steps_of(0.5)
    story.steps(STEPS_CONSIDERED, 0.5)
    before = story.now
    half = STEPS_CONSIDERED // 2 + 1
    stalled = []
    for _ in range(2 * half):
        story.step(seconds)
        stalled.append(span_seconds(story.filled().stalled_duration))
    is_stall = seconds > 2.5
    assert stalled[half - 1] == pytest.approx(half * (seconds - 0.5) if is_stall else 0.0)
    assert stalled[-1] == stalled[half - 1]
    assert story.usual() == seconds
    assert story.now == pytest.approx(before + 2 * half * seconds)


def test_one_slow_step_does_not_change_the_usual_one() -> None:
    story = usual_steps_of(0.5)
    for _ in range(5):
        story.step(30.5)
        story.steps(3, 0.5)
        assert story.usual() == 0.5
    assert story.reported() == {"boundaries": 30, "trained": 15.0, "stalled": 150.0}


def test_a_clock_that_goes_back_gives_no_negative_time() -> None:
    story = usual_steps_of(0.5)
    story.step(-3.0)
    progress = story.filled()
    assert span_seconds(progress.training_duration) >= 0.0
    assert span_seconds(progress.stalled_duration) == 0.0


def test_what_nothing_asks_for_is_worked_out_by_the_training_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "MAX_UNREAD", 100)
    story = Story()
    story.synced()
    for _ in range(1000):
        story.step(0.5)
        assert len(story.times._notes) <= 100
    assert story.reported() == {"boundaries": 1000, "trained": 500.0, "stalled": 0.0}
    assert len(story.times._notes) == 0


def test_it_does_not_matter_when_it_is_asked_for_while_steps_take_as_long_as_ever() -> None:
    asked, unasked = usual_steps_of(0.5), usual_steps_of(0.5)
    for story in (asked, unasked):
        for seconds in [0.5, 0.6, 30.5, 0.4, 0.5, 12.0, 0.5]:
            story.step(seconds)
            if story is asked:
                story.filled()
    assert asked.filled() == unasked.filled()


@pytest.mark.parametrize("seed", range(200))
def test_all_time_since_the_sync_is_training_or_stalled(seed: int) -> None:
    draw = random.Random(seed)
    story = Story()
    usual = draw.choice([0.001, 0.05, 0.5, 4.0])
    synced = declared = 0.0
    in_round = declaring = False
    boundaries = 0
    for n in range(1, 300):
        seconds = usual * draw.choice([1.0, draw.uniform(0.5, 1.5), draw.uniform(0.0, 20.0)])
        story.now += seconds
        declared += seconds if declaring else 0.0
        match draw.randrange(20):
            case 0:
                story.synced(n)
                synced, in_round, boundaries, declared = story.now, True, 0, 0.0
            case 1 | 2:
                phase = draw.choice(list(Phase))
                story.times.entered(phase)
                declaring = phase in (Phase.EVAL, Phase.SAVE)
            case 3:
                usual *= draw.choice([0.5, 1.0, 2.0])
            case _ if in_round:
                story.times.passed()
                boundaries += 1
        if draw.random() < 0.3:
            progress = story.filled()
            if not in_round:
                assert progress.ListFields()[1:] == []
                continue
            at = epoch_seconds(progress.boundary_time) - AHEAD
            training, stalled = span_seconds(progress.training_duration), span_seconds(progress.stalled_duration)
            assert progress.boundaries == boundaries
            assert training + stalled == pytest.approx(at - synced, abs=1e-5)
            assert 0.0 <= stalled <= story.now - synced - declared + 1e-5
            assert training >= 0.0
            assert progress.HasField("last_stall") == (stalled > 0.0)
            if progress.HasField("last_stall"):
                stall = progress.last_stall
                length = span_seconds(stall.duration)
                assert 1.0 - 1e-5 <= length <= stalled + 1e-5
                assert synced - 1e-5 <= epoch_seconds(stall.start_time) - AHEAD <= at - length + 1e-5
                assert 1 <= stall.boundary <= boundaries
