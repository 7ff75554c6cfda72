"""A worker's agent as a test plays it, over a real notification service; and a process group that does nothing."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import grpc

from edriver.common.release import PROTOCOL
from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.system.life_lock import LifeLock
from edriver.v1 import notification_pb2 as pb
from edriver.v1 import notification_pb2_grpc, rounds_pb2
from edriver.wire.conversion import round_id_message
from edriver.worker import context
from edriver.worker.backend.gloo.cutting import Cut
from edriver.worker.rounds.worker_rounds import WorkerRounds
from edriver.worker.state.object_state import ObjectState

BOUND = 120.0
AT_ANY_TIME: Final = {"first_boundary_passed", "sources_loaded"}
"""Kinds of reports that a test hears only if it asks for them. What is loaded depends on how pytest was started."""


class Group:
    """A process group that only remembers what was asked of it."""

    store = StoreAddress("127.0.0.1", 1)

    def __init__(self) -> None:
        self.severed = threading.Event()

    def build(self, place: Assignment, timeout: float) -> None:
        self.severed.clear()

    @property
    def gloo_only(self) -> bool:
        return True

    def sever(self, round_id: RoundId, spare_replica: bool = False) -> Cut:
        self.severed.set()
        return Cut(waiting=1, under_way=0)

    def settle(self) -> None:
        pass

    def teardown(self) -> None:
        pass


class Agent:
    """The agent's end of the stream."""

    def __init__(self, folder: Path) -> None:
        self.environ = {
            "EDRIVER_SOCKET": str(folder / "w.sock"),
            "EDRIVER_READY": str(folder / "ready.sock"),
            "EDRIVER_LIFE": str(folder / "w.life"),
            "EDRIVER_RUN_ID": "run",
            "EDRIVER_WORKER_ID": "7",
        }
        LifeLock.create(folder / "w.life")
        self._ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ready.bind(self.environ["EDRIVER_READY"])
        self._ready.settimeout(BOUND)
        self._requests: queue.Queue[pb.AttachRequest | None] = queue.Queue()

    def attach(self, run_id: str = "run", worker_id: int = 7, protocol: int = PROTOCOL) -> None:
        self.channel = grpc.insecure_channel(f"unix:{self.environ['EDRIVER_SOCKET']}")
        self.say(pb.Notice(attached=pb.Attached(run_id=run_id, worker_id=worker_id, protocol=protocol)))
        stub = notification_pb2_grpc.NotificationServiceStub(self.channel)
        self.answers: Iterator[pb.AttachResponse] = stub.Attach(iter(self._requests.get, None), timeout=BOUND)

    def announced(self) -> int:
        return int(self._ready.recv(64).split()[0])

    def say(self, notice: pb.Notice) -> None:
        self._requests.put(pb.AttachRequest(notice=notice))

    def hear(self, kind: str) -> pb.Report:
        """The worker's next report, which is of this kind; those that may come at any time are passed over."""
        for answer in self.answers:
            if (found := answer.report.WhichOneof("kind")) == kind or found not in AT_ANY_TIME:
                assert found == kind, answer.report
                return answer.report
        raise AssertionError(f"the worker is gone, and has reported no {kind}")

    def assign(self, n: int) -> None:
        seat = rounds_pb2.Seat(worker_id=7, rank=0, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
        store = rounds_pb2.StoreAddress(host="h", port=1)
        shared = rounds_pb2.RoundAssignment(round_id=round_id(n), size=1, store=store)
        self.say(pb.Notice(assignment=pb.Assignment(round=shared, seat=seat)))

    def close(self) -> None:
        self._requests.put(None)
        self.channel.close()
        self._ready.close()


def round_id(n: int) -> rounds_pb2.RoundId:
    return round_id_message(RoundId(1, n))


def rounds_of(agent: Agent, group: Group, orphaned: Callable[[], None] = lambda: None) -> WorkerRounds:
    return WorkerRounds(context.current, agent.environ, group, lambda error: False, orphaned)


def in_thread(rounds: WorkerRounds, function: object, state: ObjectState) -> queue.Queue[object]:
    outcome: queue.Queue[object] = queue.Queue()

    def call() -> None:
        try:
            outcome.put(rounds.run(function, state, (), {}))  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001  the test looks at whatever it is
            outcome.put(error)

    threading.Thread(target=call, daemon=True).start()
    return outcome
