"""A simulated host, with its agent and its workers' processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from edriver.agent.lost_round import LostRound
from edriver.model.ids import RoundId
from edriver.v1 import notification_pb2 as pb
from tests.sim.clockwork import Channel
from tests.sim.sim_rounds import Wait
from tests.sim.trainee import Trainee


@dataclass
class Process:
    """A worker process on a simulated host."""

    worker_id: int
    host: SimHost
    trainee: Trainee
    wait: Wait | None = None
    ticket: int = 0
    frozen: bool = False
    stalled: bool = False
    blocked: bool = False
    held: list[pb.Notice] = field(default_factory=list)
    alive: bool = True
    in_round: RoundId | None = None  # as its agent knows it


@dataclass
class SimHost:
    """A host with its agent and the streams between it and the driver."""

    name: str
    agent_id: int
    down: Channel
    up: Channel
    processes: dict[int, Process] = field(default_factory=dict)
    outlived: dict[int, float] = field(default_factory=dict)  # commands that go on without their Python: since when
    alive: bool = True
    cut_since: float | None = None
    abandoned: bool = False
    lost_round: LostRound = field(default_factory=LostRound)
    lost_at: float = 0.0
