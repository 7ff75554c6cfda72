"""What a stall that is over says of whom it waited for."""

from __future__ import annotations

import pytest

from edriver.driver.core.selection import plan_round
from edriver.driver.observe.pace.hold_up import SETTLE_SECONDS
from edriver.driver.observe.pace.members import PaceMonitor
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, pace_pb2, status_pb2
from edriver.wire.conversion import duration, round_id_message, timestamp

ROUND = RoundId(1, 1)
NOW = 1000.0


class Stalls:
    """A round of two members, and the time."""

    def __init__(self) -> None:
        self.now = NOW
        self.pace = PaceMonitor(lambda: self.now)
        places = [(1, 0), (2, 1)]
        candidates = [Candidate(worker, "a", slot, NO_VERSION, StoreAddress("a", 4000)) for worker, slot in places]
        assert list(self.pace.assigned(plan_round(ROUND, 1, candidates, first=True))) == []

    def say(self, rank: int, waits: bool, stopped: bool = False) -> None:
        """It waits in a collective, or goes on."""
        said = notification_pb2.WorkerProgress(round_id=round_id_message(ROUND))
        if waits:
            said.standing.activity = pace_pb2.WORKER_ACTIVITY_WAITING
            said.standing.duration.CopyFrom(duration(1.0))
        report = agent_pb2.WorkerHeartbeat(worker_id=rank + 1, pid=1, stopped=stopped)
        if not stopped:
            report.progress.CopyFrom(said)
        self.pace.record(report)

    def look(self) -> None:
        """Look twice, so that what was said holds for a while."""
        self.pace.check()
        self.now += SETTLE_SECONDS + 0.1
        self.pace.check()

    def waited_for(self) -> list[int]:
        """Ranks that a stall until now says were waited for."""
        stall = status_pb2.Interruption(
            kind=status_pb2.INTERRUPTION_KIND_STALL, start_time=timestamp(self.now - 10.0), duration=duration(10.0)
        )
        found = self.pace.hold_up_in(stall)
        assert found is not None
        return [each.rank for each in found.waited_for]


@pytest.fixture
def stalls() -> Stalls:
    """Rank 0 waits for rank 1, whose process is stopped."""
    made = Stalls()
    made.say(0, waits=True)
    made.say(1, waits=False, stopped=True)
    made.look()
    return made


def test_one_that_wakes_up_and_waits_before_the_next_step_was_waited_for(stalls: Stalls) -> None:
    assert stalls.waited_for() == [1]
    stalls.say(1, waits=True)
    stalls.look()
    assert stalls.waited_for() == [1]


def test_the_next_stall_does_not_name_those_of_the_one_before(stalls: Stalls) -> None:
    for rank in (0, 1):
        stalls.say(rank, waits=False)
    stalls.look()
    stalls.now += 30.0
    for rank in (0, 1):
        stalls.say(rank, waits=True)
    stalls.look()
    assert stalls.waited_for() == []


def test_one_that_is_stopped_while_it_waits_is_announced_once_that_is_known() -> None:
    made = Stalls()
    for rank in (0, 1):
        made.say(rank, waits=True)
    announced = []
    for stopped in (False, True, True):
        if stopped:
            made.say(1, waits=True, stopped=True)
        for _ in range(2):
            announced += [[each.rank for each in event.hold_up.waited_for] for event in made.pace.check()]
            made.now += SETTLE_SECONDS + 0.1
    assert announced == [[], [1]]
