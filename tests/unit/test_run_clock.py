"""The clock by which a run writes its times: it is read once, and counts on from there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edriver.agent.settings import AgentSettings
from edriver.agent.worker_settings import WorkerSettings
from edriver.common.run_clock import CLOCK_VARIABLE, RunClock
from edriver.v1 import agent_pb2
from edriver.wire.conversion import timestamp


class Machine:
    """A machine, with the time since it was booted, and its clock."""

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self.steady, self.wall = 50.0, wall

    def passes(self, seconds: float) -> None:
        self.steady += seconds
        self.wall += seconds

    def clock(self) -> RunClock:
        return RunClock(None, lambda: self.steady, lambda: self.wall)


@pytest.mark.parametrize("change", [3600.0, -3600.0])
def test_it_does_not_follow_a_machine_whose_clock_is_set(change: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(10.0)
    machine.wall += change
    assert clock() == 1_000_010.0
    assert clock.behind_machine() == change


def test_an_agent_goes_by_the_clock_of_its_driver() -> None:
    agent = Machine(wall=996_400.0).clock()
    agent.follow(1_000_000.0)
    assert agent() == 1_000_000.0


def test_an_agent_whose_clock_hardly_differs_keeps_it() -> None:
    agent = Machine(wall=1_000_000.2).clock()
    agent.follow(1_000_000.0)
    assert agent() == 1_000_000.2


def test_the_next_driver_reads_no_earlier_time_than_the_last_one() -> None:
    clock = Machine(wall=996_400.0).clock()
    clock.go_on_after(1_000_000.0)
    assert clock() == 1_000_000.0
    clock.go_on_after(999_000.0)
    assert clock() == 1_000_000.0


def test_a_worker_goes_by_the_clock_of_its_agent() -> None:
    ahead = RunClock(ahead=12345.678901)
    assert RunClock.of({CLOCK_VARIABLE: repr(ahead.ahead)}).ahead == ahead.ahead


@pytest.mark.parametrize("environment", [{}, {CLOCK_VARIABLE: "noon"}], ids=["none", "nonsense"])
def test_a_worker_without_one_reads_its_machines(environment: Mapping[str, str]) -> None:
    assert abs(RunClock.of(environment).behind_machine()) < 60.0


def test_a_worker_is_told_the_time_that_the_driver_has_told_its_agent(tmp_path: object) -> None:
    from pathlib import Path

    worker_settings = WorkerSettings(AgentSettings("run", "a", 1, "127.0.0.1", Path(str(tmp_path))), {})
    hour_ahead = worker_settings.clock() + 3600.0
    worker_settings.take(agent_pb2.Welcome(now=timestamp(hour_ahead)))
    told = RunClock.of(worker_settings.environment_of(agent_pb2.StartWorker(worker_id=1, slot=0)))
    assert 3590.0 < told() - RunClock()() < 3610.0
