"""Hosts and workers as observers see them (status.proto); the core's records, put into messages."""

from __future__ import annotations

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.driver.core.host_state import HostStanding, HostState
from edriver.driver.observe.cause_text import cause_with_text, obstacle_messages
from edriver.model.actions import Failure, FinishRun, RunEnd
from edriver.model.records import HostRecord, Worker, WorkerState
from edriver.runview.run_view import RunView
from edriver.v1 import status_pb2
from edriver.wire.conversion import timestamp

WORKER_STATES: Final = {
    WorkerState.BOOTING: status_pb2.WORKER_STATE_BOOTING,
    WorkerState.WAITING: status_pb2.WORKER_STATE_WAITING,
    WorkerState.TRAINING: status_pb2.WORKER_STATE_TRAINING,
    WorkerState.DONE: status_pb2.WORKER_STATE_DONE,
    WorkerState.FINISHED: status_pb2.WORKER_STATE_FINISHED,
    WorkerState.STOPPING: status_pb2.WORKER_STATE_STOPPING,
}

HOST_STATES: Final = {
    HostState.STARTING: status_pb2.HOST_STATE_STARTING,
    HostState.USED: status_pb2.HOST_STATE_USED,
    HostState.PARTLY_USED: status_pb2.HOST_STATE_PARTLY_USED,
    HostState.IDLE: status_pb2.HOST_STATE_IDLE,
    HostState.LEAVING: status_pb2.HOST_STATE_LEAVING,
    HostState.DRAINED: status_pb2.HOST_STATE_DRAINED,
    HostState.QUARANTINED: status_pb2.HOST_STATE_QUARANTINED,
    HostState.UNREACHABLE: status_pb2.HOST_STATE_UNREACHABLE,
    HostState.GONE: status_pb2.HOST_STATE_GONE,
}

RUN_ENDS: Final = {
    RunEnd.DONE: status_pb2.RUN_END_DONE,
    RunEnd.STOPPED: status_pb2.RUN_END_STOPPED,
    RunEnd.FAILED: status_pb2.RUN_END_FAILED,
}

MAX_REPORTED_FAILURES: Final = 8
"""Workers' failures in a run's last event."""


def host_status(
    name: str, record: HostRecord | None, standing: HostStanding, discovered: float, ahead: float
) -> status_pb2.HostStatus:
    """A host now.

    Args:
        name: its name.
        record: its record; None: the core no longer knows it.
        standing: its state, with the reasons.
        discovered: when discovery first named it, in seconds since the epoch.
        ahead: the time since the epoch less that of the core's clock.
    """
    until = standing.quarantined_until
    return status_pb2.HostStatus(
        name=name,
        slots=record.slots if record else 0,
        connected=record.connected if record else False,
        obstacles=obstacle_messages(standing.reasons),
        discover_time=timestamp(discovered),
        state=HOST_STATES[standing.state],
        workers=standing.workers,
        quarantine_end_time=None if until is None else timestamp(until + ahead),
    )


def failure_message(failure: Failure, view: RunView) -> status_pb2.WorkerFailure:
    """What is known of a worker that has failed.

    Args:
        failure: what the core knows.
        view: the run, after all events so far, which have the time.
    """
    noticed = view.loss_times.get(failure.worker.worker_id)
    return status_pb2.WorkerFailure(
        cause=cause_with_text(failure.cause),
        traceback=failure.traceback,
        tail=failure.tail,
        time=None if noticed is None else timestamp(noticed),
    )


def worker_status(worker: Worker, started: Timestamp) -> status_pb2.WorkerStatus:
    """A worker now.

    Args:
        worker: its record.
        started: when it was started.
    """
    return status_pb2.WorkerStatus(
        worker_id=worker.worker_id,
        host=worker.host,
        slot=worker.slot,
        state=WORKER_STATES[worker.state],
        rank=worker.rank,
        start_time=started,
    )


def run_ended(action: FinishRun, view: RunView, time_spent: status_pb2.TimeSpent) -> status_pb2.RunEnded:
    """How the run has ended, and what became of its time.

    Args:
        action: the core's last one.
        view: the run, after all events before.
        time_spent: how it has spent its time.
    """
    return status_pb2.RunEnded(
        end=RUN_ENDS[action.end],
        time_spent=time_spent,
        recoveries=view.recoveries,
        worker_failures=[failure_message(failure, view) for failure in action.failures[:MAX_REPORTED_FAILURES]],
        failures=view.count("failures"),
        preemptions=view.count("preemptions"),
        resizes=view.count("resizes"),
        unproven=view.count("unproven"),
        rounds=view.rounds,
        size=view.last_size,
    )
