"""Hosts and workers as onlookers are told of them (status.proto); the core's records, put into messages."""

from __future__ import annotations

from typing import Final

from edriver.driver.core.membership import Membership
from edriver.driver.core.roster import HostRecord, Worker, WorkerState
from edriver.v1 import status_pb2

STATES: Final = {
    WorkerState.BOOTING: status_pb2.WORKER_STATE_BOOTING,
    WorkerState.WAITING: status_pb2.WORKER_STATE_WAITING,
    WorkerState.TRAINING: status_pb2.WORKER_STATE_TRAINING,
    WorkerState.DONE: status_pb2.WORKER_STATE_DONE,
    WorkerState.FINISHED: status_pb2.WORKER_STATE_FINISHED,
    WorkerState.STOPPING: status_pb2.WORKER_STATE_STOPPING,
}


def size_of(membership: Membership) -> int:
    """How many train in the round that is on; 0: none is."""
    current = membership.round
    return len(current.plan.seats) if current and current.running else 0


def host_status(name: str, record: HostRecord | None, obstacle: str, since: float) -> status_pb2.HostStatus:
    """A host now.

    Args:
        name: its name.
        record: its record; None: the core no longer knows it.
        obstacle: why it is not used, or not all of it.
        since: when the run first knew of it, in seconds since the epoch.
    """
    return status_pb2.HostStatus(
        name=name,
        slots=record.slots if record else 0,
        connected=record.connected if record else False,
        obstacle=obstacle,
        since=since,
    )


def worker_status(worker: Worker, since: float) -> status_pb2.WorkerStatus:
    """A worker now.

    Args:
        worker: its record.
        since: when it was started, in seconds since the epoch.
    """
    return status_pb2.WorkerStatus(
        worker_id=worker.worker_id,
        host=worker.host,
        slot=worker.slot,
        state=STATES[worker.state],
        rank=worker.rank,
        since=since,
    )
