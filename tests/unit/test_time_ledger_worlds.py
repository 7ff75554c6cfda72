"""The ledger of time under anything that may happen, and under members that tell the truth."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping

import pytest

from edriver.driver.observe.time_ledger import TimeLedger
from edriver.model.cause import RoundEnd
from edriver.model.ids import RoundId
from edriver.model.stall_limits import Phase
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import notification_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds
from edriver.worker.rounds.step_times import StepTimer
from tests.unit.time_ledger_story import BEGAN, BOOT, FAILURE, KIND_OF, NEXT_RUN, NO_PHASES, STALL, Story, check

# ---- of anything that may happen -------------------------------------------------------------------------------------


class Chance(Story):
    """What a driver may see of a run, whatever its members say."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        super().__init__(counts_steps=self.draw.random() < 0.8)
        self.now = BEGAN
        self.in_round = self.under_way_now = False
        self.wrong = self.draw.choice([0.0, 0.0, 0.3, -0.3, 1e4, -1e4])
        self.seen: list[tuple[float, dict[str, float], float]] = []

    def time(self) -> float:
        """Of something that a member says."""
        return self.now - self.draw.choice([0.0, self.draw.uniform(0, 2), self.draw.uniform(0, 20)]) + self.wrong

    def happens(self) -> None:
        draw = self.draw
        self.now += draw.choice([0.0, draw.uniform(0.0, 0.5), draw.uniform(0.0, 5.0), draw.uniform(0.0, 60.0)])
        match draw.randrange(12):
            case 0 | 1 if not self.in_round:
                self.assigned(self.now, size=3, lost=draw.choice([0, 0, 1, 7]))
                self.in_round, self.under_way_now = True, False
            case 2 if self.in_round and not self.under_way_now:
                self.under_way(self.time(), self.now)
                self.under_way_now = True
            case 3 if self.in_round:
                self.ended(self.now, draw.choice(list(RoundEnd)), draw.choice([None, self.time()]))
                self.in_round = False
            case 4:
                self.ledger.noticed(self.time())
            case 5:
                self.ledger.waits(draw.random() < 0.5, self.now)
            case _ if self.n:
                stalled = draw.choice([0.0, 0.0, draw.uniform(0.0, 50.0)])
                boundaries = draw.randrange(30)
                self.says(
                    boundaries,
                    self.time(),
                    self.now,
                    stalled=stalled,
                    stall=(self.time(), stalled, boundaries) if stalled else None,
                    usual=draw.choice([None, 0.01, 0.5, 3.0]),
                    since=self.time() - 20.0,
                    n=max(1, self.n - draw.choice([0, 0, 0, 1])),
                )


@pytest.mark.parametrize("seed", range(400))
def test_all_time_is_of_one_kind_whatever_happens(seed: int) -> None:
    story = Chance(seed)
    for _ in range(story.draw.randrange(120)):
        story.happens()
        before = look(story.ledger, story.now)
        story.now += story.draw.choice([0.0, 0.4, 3.0, 40.0])
        after = look(story.ledger, story.now)
        assert all(after[kind] >= before[kind] - 1e-5 for kind in after), (before, after)
    story.run_ended(story.now)
    ended = look(story.ledger, story.now)
    assert sum(ended.values()) - ended["until"] == pytest.approx(story.now - BEGAN, abs=1e-5)
    if story.n:
        story.says(99, story.now)
    story.ended(story.now)
    story.ledger.noticed(story.now)
    story.ledger.waits(True, story.now)
    assert look(story.ledger, story.now + 99.0) == ended
    assert all(each.duration.ToMicroseconds() >= 0 for each in story.over)


def look(ledger: TimeLedger, now: float) -> dict[str, float]:
    """Seconds by kind, and until when."""
    spent = ledger.time_spent(now)
    check(spent, now)
    return seconds_by_kind(spent) | {"until": epoch_seconds(spent.until)}


# ---- of members that tell the truth ----------------------------------------------------------------------------------


class Members:
    """A run of two members that make their steps together, and what is true of it.

    Attributes:
        story: what the driver makes of it.
        now: seconds since the epoch.
        true: seconds by kind, as they are.
        gaps: the interruptions that there were, but for stalls: kind, start, length, failed rounds, steps lost.
        stalls: the stalls that there were: start and length.
        final: what the last look told that was final.
        settled: what the last look told that was settled,
        surprised: and whether steps have been told of since that were taken for none.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.story = Story()
        self.now = BEGAN
        self.usual = self.draw.choice([0.05, 0.5, 2.0])
        self.true = dict.fromkeys(seconds_by_kind(status_pb2.TimeSpent()), 0.0)
        self.gaps: list[tuple[int, float, float, int, int]] = []
        self.stalls: list[tuple[float, float]] = []
        self.final: Mapping[str, float] = {}
        self.settled: Mapping[str, float] = {}
        self.surprised = False
        self.step_times = [StepTimer(lambda: self.now, lambda: self.now) for _ in range(2)]
        self.boundary = BEGAN
        self.kind: status_pb2.InterruptionKind.ValueType = BOOT
        self.waited = self.unnoticed = 0.0
        self.failed_rounds = self.lost = 0
        self.first, self.highest = 0, 0  # steps of the run: before the round, and the most that there ever were
        self.made = 0  # in the round

    def passes(self, seconds: float) -> None:
        """Time passes, and is looked at now and then."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.draw.choice([seconds, self.draw.uniform(0.0, 3.0)]) + 1e-3)
            self.look()

    def look(self) -> None:
        told = look(self.story.ledger, self.now)
        assert all(told[kind] >= seconds - 1e-4 for kind, seconds in self.final.items()), (told, self.final)
        if self.story.ledger.interruption(self.now) is None:
            self.final = told
        settled = seconds_by_kind(self.story.ledger.settled(self.now))
        grows = all(settled[kind] >= seconds - 1e-4 for kind, seconds in self.settled.items())
        assert grows or self.surprised, (settled, self.settled)
        self.settled = settled

    def report(self, member: int) -> None:
        """A member's sign of life."""
        progress = notification_pb2.WorkerProgress()
        self.step_times[member].fill(progress)
        self.story.over += self.story.ledger.record_progress(progress, self.now)
        self.look()

    def assigned(self) -> None:
        """The next round begins at a step that a member holds."""
        begins = self.first + self.made - self.draw.choice([0, self.draw.randint(0, self.made)])
        lost, self.first, self.made = self.first + self.made - begins, begins, 0
        self.lost += lost
        self.story.assigned(self.now, lost=lost)
        self.passes(self.draw.uniform(0.0, 2.0))

    def synced(self) -> float:
        """The gap is over: it consists of what is known of it."""
        length = self.now - self.boundary
        self.gaps.append((self.kind, self.boundary, length, self.failed_rounds, self.lost))
        if self.kind in (BOOT, NEXT_RUN):
            self.true["booting"] += length
        else:
            self.true["stalled"] += self.unnoticed
            self.true["waiting"] += self.waited
            self.true["recovering"] += length - self.waited - self.unnoticed
        self.waited = self.unnoticed = 0.0
        self.failed_rounds = self.lost = 0
        for each in self.step_times:
            each.synced(RoundId(1, self.story.n))
        self.boundary = self.now
        return self.now

    def step(self, ordinary: bool) -> bool:
        """The next one; returns whether it was an ordinary one."""
        draw = self.draw
        stall = (
            draw.uniform(6 * self.usual + 1.0, 60.0) if draw.random() < 0.04 and not ordinary and self.made > 4 else 0.0
        )
        new = self.first + self.made >= self.highest  # others are taken to be alike
        evaluation = draw.uniform(0.0, 20.0) if draw.random() < 0.04 and new and not ordinary else 0.0
        if evaluation:
            self.declares(evaluation)
        self.passes(self.usual + stall)
        for each in self.step_times:
            each.passed()
        if stall:
            self.stalls.append((self.now - stall, stall))
        self.true["stalled"] += stall
        self.made += 1
        self.true["repeating" if self.first + self.made <= self.highest else "training"] += self.usual + evaluation
        self.boundary = self.now
        return not stall and not evaluation

    def declares(self, seconds: float) -> None:
        """The script evaluates."""
        for each in self.step_times:
            each.entered(Phase.EVAL)
        self.passes(seconds)
        for each in self.step_times:
            each.entered(Phase.STEP)

    def round(self, steps: int, under_way: bool = True, told: bool = True) -> None:
        """So many steps; where it is not under way, one member was too slow for its first one.

        Args:
            steps: how many.
            under_way: whether all members make them.
            told: whether workers report any of them before the round has ended.
        """
        self.assigned()
        self.surprised = self.surprised or not told
        synced = self.synced()
        for number in range(1, steps + 1):
            ordinary = self.step(ordinary=not under_way)
            left = self.highest - self.first - self.made
            if not told:
                continue
            if number == 1:
                for member in (0, 1)[: 1 + under_way]:
                    self.report(member)
                if under_way:
                    self.story.over += self.story.ledger.under_way(synced, NO_PHASES, self.now)
                    self.look()
            elif self.draw.random() < 0.4 or not ordinary or left == 0:
                self.report(self.draw.randrange(2) if under_way else 0)
        self.highest = max(self.highest, self.first + self.made)

    def ended(self, how: RoundEnd) -> None:
        silent = self.draw.choice([0.0, 1.0, 30.0]) if how is not RoundEnd.DONE else 0.0
        self.passes(self.draw.uniform(0.0, self.usual) + silent * 6 * self.usual)
        if (silence := self.now - self.boundary) > max(5 * self.usual, self.usual + 1.0):
            self.unnoticed = silence - self.usual
        self.story.ended(self.now, how)
        self.kind = KIND_OF[how]
        self.look()
        self.passes(self.draw.uniform(0.0, 0.5))
        for member in (0, 1):
            self.report(member)

    def fails(self) -> None:
        """A round without a step."""
        self.assigned()
        self.story.ended(self.now)
        self.failed_rounds += 1
        self.waits()

    def waits(self) -> None:
        seconds = self.draw.choice([0.0, self.draw.uniform(0.0, 40.0)])
        if seconds:
            self.story.ledger.waits(True, self.now)
            self.passes(seconds)
            self.story.ledger.waits(False, self.now)
            self.waited += seconds


@pytest.mark.parametrize("seed", range(80))
def test_what_is_told_is_what_was(seed: int) -> None:
    run = Members(seed)
    draw = run.draw
    run.passes(12.0)
    run.round(20)
    for _ in range(8):
        how = draw.choices(list(RoundEnd), [5, 1, 3, 1, 1])[0]
        if how is RoundEnd.DONE and run.first + run.made < run.highest:
            how = RoundEnd.FAILURE  # a script is not done before all is made again
        run.ended(how)
        if run.kind == NEXT_RUN:
            run.first, run.made, run.highest = run.first + run.made, 0, run.first + run.made
        run.waits()
        while draw.random() < 0.3:
            run.fails()
        under_way = draw.random() < 0.8
        run.round(draw.randrange(1, 40), under_way, told=under_way or draw.random() < 0.5)
    run.ended(RoundEnd.DONE)
    run.story.run_ended(run.now)
    run.true["ending"] = run.now - run.boundary
    told = look(run.story.ledger, run.now)
    assert told.pop("until") == pytest.approx(run.now, abs=1e-3)
    assert told == pytest.approx(run.true, abs=1e-3)
    assert seconds_by_kind(run.story.ledger.settled(run.now)) == told
    assert [
        (each.kind, epoch_seconds(each.start_time), span_seconds(each.duration), each.failed_rounds, each.steps_lost)
        for each in run.story.over
        if each.kind != STALL
    ] == [pytest.approx(gap, abs=1e-3) for gap in run.gaps]
    assert [(start, length) for kind, start, length in run.story.lengths() if kind == STALL] == [
        pytest.approx(stall, abs=1e-3) for stall in run.stalls
    ]
    failures = [length for kind, _, length, _, _ in run.gaps if kind == FAILURE]
    summary = run.story.recoveries()
    assert summary.count == len(failures)
    if failures:
        assert span_seconds(summary.median) == pytest.approx(statistics.median(failures), abs=1e-3)
        assert span_seconds(summary.longest) == pytest.approx(max(failures), abs=1e-3)
