"""Which worker writes the checkpoint of a run whose driver never comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from edriver.agent.driverless import Driverless
from edriver.agent.lost_round import loss_in
from edriver.agent.worker import WorkerSupervisor
from edriver.agent.worker_settings import WorkerSettings
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2

ROUND = rounds_pb2.RoundId(incarnation=1, n=4)
BOUND = 120.0


class Member:
    """A worker as far as this concerns it, with its rank; it notes whether it is to write."""

    def __init__(self, worker_id: int, rank: int) -> None:
        self.worker_id, self.host, self.slot = worker_id, "a", worker_id
        self.round_id, self.in_round = ROUND, True
        self.capture = SimpleNamespace(rank=rank)
        self.link = SimpleNamespace(parted=False, deliver=lambda _notice: None)
        self.trainer_ended = False
        self.writes: bool | None = None

    def say(self, driverless: Driverless, message: agent_pb2.ConnectRequest) -> None:
        """As a worker does: where it ends, it knows so before it says so."""
        self.trainer_ended |= not message.HasField("worker_report")
        driverless.note(message)

    def part_with_run(self, checkpoint: bool, bound: float) -> None:
        assert bound == BOUND
        self.writes = checkpoint


def ending(worker_id: int) -> agent_pb2.ConnectRequest:
    return agent_pb2.ConnectRequest(worker_ending=agent_pb2.WorkerEnding(worker_id=worker_id))


def exited(worker_id: int) -> agent_pb2.ConnectRequest:
    return agent_pb2.ConnectRequest(worker_exited=agent_pb2.WorkerExited(worker_id=worker_id))


def collective_raised(worker_id: int) -> agent_pb2.ConnectRequest:
    raised = notification_pb2.Report(collective_raised=notification_pb2.CollectiveRaised(round_id=ROUND))
    return agent_pb2.ConnectRequest(worker_report=agent_pb2.WorkerReport(worker_id=worker_id, report=raised))


@pytest.mark.parametrize(
    ("messages", "writer"),
    [
        pytest.param([], 0, id="rank-0"),
        pytest.param([collective_raised(12)], 0, id="the-lowest-here-as-rank-0-may-have-been-the-one"),
        pytest.param([ending(11)], 1, id="not-one-that-ends-and-is-not-reaped"),
        pytest.param([collective_raised(12), exited(11)], 1, id="nor-one-that-was-reaped-and-is-not-parted-from"),
        pytest.param([ending(11), ending(12)], 2, id="of-those-that-live"),
    ],
)
def test_one_of_those_that_live_writes_a_checkpoint(messages: list[agent_pb2.ConnectRequest], writer: int) -> None:
    members = [Member(11, 0), Member(12, 1), Member(13, 2)]
    workers = {member.worker_id: cast(WorkerSupervisor, member) for member in members}
    worker_settings: Any = SimpleNamespace(restart_mode=None)
    driverless = Driverless(workers, "a", cast(WorkerSettings, worker_settings), lambda: False)
    for message in messages:
        next(member for member in members if member.worker_id == loss_in(message)).say(driverless, message)
    driverless.part_with_run(BOUND)
    assert [member.capture.rank for member in members if member.writes] == [writer]


def test_where_rank_0_is_on_another_host_none_writes_here_unless_the_round_has_lost_a_member() -> None:
    members = [Member(12, 1), Member(13, 2)]
    workers = {member.worker_id: cast(WorkerSupervisor, member) for member in members}
    worker_settings: Any = SimpleNamespace(restart_mode=None)
    driverless = Driverless(workers, "a", cast(WorkerSettings, worker_settings), lambda: False)
    driverless.part_with_run(BOUND)
    assert [member.writes for member in members] == [False, False]
    members[1].say(driverless, ending(13))
    driverless.part_with_run(BOUND)
    assert [member.writes for member in members] == [True, False]
