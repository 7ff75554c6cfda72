"""Which members are slower than the others: tables, and simulated members with noise."""

from __future__ import annotations

import random
from statistics import median

import pytest

from edriver.driver.observe.pace.stragglers import (
    StepReport,
    StepTimes,
    StragglerVerdict,
    Window,
    _median_of_others,
    stragglers,
)
from edriver.text.pace_text import straggler_text
from edriver.v1 import pace_pb2
from edriver.wire.conversion import duration, timestamp

LOADING = pace_pb2.STRAGGLER_REASON_LOADING
COMPUTING = pace_pb2.STRAGGLER_REASON_COMPUTING
PROCESSOR = pace_pb2.STRAGGLER_REASON_PROCESSOR

Parts = tuple[float, float, float]  # computing, loading and delay


def steps_of(*members: Parts) -> dict[int, StepTimes]:
    """A step of members that wait for the slowest of them; delay is part of computing."""
    whole = max(computing + loading for computing, loading, _ in members)
    return {
        number: StepTimes(whole, whole - computing - loading, loading, delayed)
        for number, (computing, loading, delayed) in enumerate(members)
    }


def found(
    earlier: dict[int, StepTimes], later: dict[int, StepTimes], known: tuple[int, ...] = ()
) -> dict[int, StragglerVerdict]:
    return stragglers({one: (earlier[one], later[one]) for one in earlier}, dict.fromkeys(known))


EVEN = [(0.1, 0.01, 0.0)] * 4


@pytest.mark.parametrize(
    ("members", "slow"),
    [
        (EVEN, {}),
        ([*EVEN, (0.1, 0.098, 0.0)], {4: (1.8, LOADING)}),
        ([*EVEN, (0.198, 0.0, 0.0)], {4: (1.8, COMPUTING)}),
        ([*EVEN, (0.188, 0.01, 0.08)], {4: (1.8, PROCESSOR)}),
        ([*EVEN, (0.1, 0.12, 0.0), (0.09, 0.24, 0.0)], {5: (3.0, LOADING), 4: (2.0, LOADING)}),
        ([(0.1, 0.0, 0.0), (0.18, 0.0, 0.0)], {1: (1.8, COMPUTING)}),
        ([*EVEN, (0.12, 0.01, 0.0)], {}),
        ([(0.0005, 0.0, 0.0), (0.001, 0.0, 0.0)], {}),
        ([(0.1, 0.0, 0.0)], {}),
        ([*EVEN[:2], (0.22, 0.0, 0.0), (0.22, 0.0, 0.0)], {2: (2.0, COMPUTING), 3: (2.0, COMPUTING)}),
        ([EVEN[0], *[(0.22, 0.0, 0.0)] * 3], {}),
    ],
    ids=[
        "even",
        "loading",
        "computing",
        "processor",
        "two",
        "of two members",
        "hardly",
        "microseconds",
        "alone",
        "half of them",
        "most of them",
    ],
)
def test_who_is_slow(members: list[Parts], slow: dict[int, tuple[float, pace_pb2.StragglerReason.ValueType]]) -> None:
    steps = steps_of(*members)
    verdicts = found(steps, steps)
    assert {one: (round(each.ratio, 2), each.reason) for one, each in verdicts.items()} == slow
    assert list(verdicts) == list(slow)


def test_a_pause_makes_none() -> None:
    slow = steps_of(*EVEN, (0.3, 0.0, 0.0))
    even = steps_of(*EVEN, (0.1, 0.01, 0.0))
    assert not found(even, slow)
    assert not found(slow, even)


def test_one_stays_slow_until_it_hardly_is() -> None:
    slow, hardly, even = (steps_of(*EVEN, (computing, 0.01, 0.0)) for computing in (0.3, 0.125, 0.105))
    assert list(found(hardly, hardly)) == []
    assert list(found(slow, hardly, known=(4,))) == [4]
    assert list(found(hardly, even, known=(4,))) == []


def test_where_waiting_cannot_be_seen_loading_is_compared() -> None:
    steps = {number: StepTimes(0.2, None, loading, 0.0) for number, loading in enumerate((0.01, 0.01, 0.11))}
    verdicts = found(steps, steps)
    assert {one: (round(each.ratio, 2), each.reason) for one, each in verdicts.items()} == {2: (2.0, LOADING)}


@pytest.mark.parametrize("count", range(2, 9))
def test_the_median_of_the_others(count: int) -> None:
    draw = random.Random(count)
    for _ in range(200):
        values = {one: float(draw.randrange(5)) for one in range(count)}
        of_others = _median_of_others(values)
        for one in values:
            assert of_others(one) == median(value for other, value in values.items() if other != one)


class Members:
    """Members of a round, each of which is looked at twenty times a second by a watch that sees one of three things."""

    def __init__(self, count: int, seed: int, step: float = 0.1) -> None:
        self._draw = random.Random(seed)
        self.now = 0.0
        self.step = step
        self.windows = [Window() for _ in range(count)]
        self.watched = [0.0] * count
        self.waiting = [0.0] * count
        self.boundaries = 0

    def second(self, own: list[float]) -> None:
        """A second passes; each member's own part of a step is so long, give or take a fifth."""
        self.now += 1.0
        drawn = [each * self._draw.uniform(0.8, 1.2) for each in own]
        whole = max(drawn)
        self.boundaries += max(1, round(1.0 / whole))
        for number, mine in enumerate(drawn):
            looks = 20
            waits = sum(self._draw.random() >= mine / whole for _ in range(looks))
            self.watched[number] += 1.0
            self.waiting[number] += waits / looks
            sample = StepReport(self.now, self.boundaries, self.watched[number], self.waiting[number], 0.0, 0.0)
            self.windows[number].add(sample)

    def verdicts(self, known: tuple[int, ...] = ()) -> dict[int, StragglerVerdict]:
        halves = {}
        for number, window in enumerate(self.windows):
            if (pair := window.halves(self.now)) is not None:
                halves[number] = pair
        return stragglers(halves, dict.fromkeys(known)) if len(halves) == len(self.windows) else {}


@pytest.mark.parametrize("count", [2, 3, 8])
def test_noise_makes_no_straggler(count: int) -> None:
    for seed in range(20):
        members = Members(count, seed)
        for _ in range(120):
            members.second([0.05] * count)
            assert not members.verdicts()


def test_a_slow_one_is_found_within_half_a_minute_and_does_not_flap() -> None:
    for seed in range(20):
        members = Members(4, seed)
        for _ in range(40):
            members.second([0.05] * 4)
        took = 0
        while 2 not in members.verdicts():
            members.second([0.05, 0.05, 0.09, 0.05])
            took += 1
            assert took <= 30, seed
        for _ in range(60):
            members.second([0.05, 0.05, 0.09, 0.05])
            assert list(members.verdicts(known=(2,))) == [2], seed
        took = 0
        while members.verdicts(known=(2,)):
            members.second([0.05] * 4)
            took += 1
            assert took <= 30, seed


def test_little_is_remembered_and_slow_steps_have_a_longer_window() -> None:
    window = Window()
    for second in range(10_000):
        window.add(StepReport(float(second), second // 20, float(second), 0.0, 0.0, 0.0))
        if second == 100:
            assert window.halves(100.0) is None  # five steps of 20 s in each half are wanted
    assert window.halves(9_999.0) is not None
    assert len(window._samples) <= 40
    latest = window.latest()
    assert latest is not None
    assert latest.seconds == pytest.approx(20.0, rel=0.1)


def test_a_count_that_falls_begins_anew() -> None:
    window = Window()
    for second in range(60):
        window.add(StepReport(float(second), second, float(second), 0.0, 0.0, 0.0))
    assert window.halves(60.0) is not None
    window.add(StepReport(60.0, 1, 0.0, 0.0, 0.0, 0.0))
    assert window.halves(60.0) is None
    assert window.latest() is None


def test_in_words() -> None:
    slow = pace_pb2.Straggler(
        rank=5, host="c", slot=1, ratio=1.8, reason=LOADING, start_time=timestamp(100.0), excess=duration(0.08)
    )
    text = "rank 5 (c:1) is 1.8 times slower than the median of the others for 40 s, 80 ms per step: data loading"
    assert straggler_text(slow, 140.0) == text
    slow.end_time.CopyFrom(timestamp(160.0))
    assert straggler_text(slow, 200.0) == "rank 5 (c:1) is no longer slower than the others, after 1 min 0 s"


def test_members_of_a_large_run_that_report_rarely_have_a_longer_window() -> None:
    window = Window()
    for second in range(0, 200, 20):
        window.add(StepReport(float(second), 5 * second, float(second), 0.0, 0.0, 0.0))
    assert window.halves(199.0) is not None
