"""StatusService: what an onlooker may know of the run. It reads what the core knows, and can change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edriver.driver.membership import Membership
from edriver.driver.roster import Worker, WorkerState
from edriver.release import VERSION
from edriver.v1 import status_pb2, status_pb2_grpc
from edriver.wire import round_id_message

if TYPE_CHECKING:
    from edriver.v1.status_pb2_grpc import _ServicerContext

_STATES: Final = {
    WorkerState.BOOTING: status_pb2.WORKER_STATE_BOOTING,
    WorkerState.WAITING: status_pb2.WORKER_STATE_WAITING,
    WorkerState.TRAINING: status_pb2.WORKER_STATE_TRAINING,
    WorkerState.DONE: status_pb2.WORKER_STATE_DONE,
    WorkerState.FINISHED: status_pb2.WORKER_STATE_FINISHED,
    WorkerState.STOPPING: status_pb2.WORKER_STATE_STOPPING,
}


class StatusServer(status_pb2_grpc.StatusServiceServicer):
    """StatusService (proto/edriver/v1/status.proto).

    Args:
        run_id: the run.
        membership: what is known; only looked at.
        clock: seconds, the core's.
    """

    def __init__(self, run_id: str, membership: Membership, clock: Callable[[], float]) -> None:
        self._run_id = run_id
        self._membership = membership
        self._clock = clock
        self._started = clock()

    async def GetRun(  # noqa: N802
        self, _request: status_pb2.GetRunRequest, _context: _ServicerContext
    ) -> status_pb2.GetRunResponse:
        """See the proto file."""
        now, roster, current = self._clock(), self._membership.roster, self._membership.round
        told = status_pb2.GetRunResponse(
            run_id=self._run_id,
            version=VERSION,
            seconds=now - self._started,
            doing=self._membership.reason or "starting",
            workers=[_worker(worker) for worker in roster.workers.values()],
        )
        if current and current.running:
            told.round_id.CopyFrom(round_id_message(current.plan.round_id))
            told.size = len(current.plan.seats)
        obstacles: dict[str, list[str]] = {}
        for name, words in self._membership.staffing.obstacles(now):
            obstacles.setdefault(name, []).append(words)
        for record in roster.hosts.values():
            told.hosts.add(
                name=record.name,
                slots=record.slots,
                connected=record.connected,
                obstacle="; ".join(obstacles.get(record.name, ())),
            )
        return told


def _worker(worker: Worker) -> status_pb2.WorkerStatus:
    return status_pb2.WorkerStatus(
        worker_id=worker.worker_id, host=worker.host, slot=worker.slot, state=_STATES[worker.state], rank=worker.rank
    )
