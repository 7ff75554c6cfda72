"""Hosts and workers as observers see them (status.proto); the core's records, put into messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.common.wire import timestamp
from edriver.driver.core.actions import Failure, FinishRun, RunEnd
from edriver.driver.core.cause import Cause
from edriver.driver.core.failures.budgets import Budgets
from edriver.driver.core.membership import Membership
from edriver.driver.core.roster import HostRecord, Worker, WorkerState
from edriver.driver.observe.cause_message import cause_with_text, obstacle_messages
from edriver.driver.observe.time_ledger import TimeLedger
from edriver.v1 import status_pb2

WORKER_STATES: Final = {
    WorkerState.BOOTING: status_pb2.WORKER_STATE_BOOTING,
    WorkerState.WAITING: status_pb2.WORKER_STATE_WAITING,
    WorkerState.TRAINING: status_pb2.WORKER_STATE_TRAINING,
    WorkerState.DONE: status_pb2.WORKER_STATE_DONE,
    WorkerState.FINISHED: status_pb2.WORKER_STATE_FINISHED,
    WorkerState.STOPPING: status_pb2.WORKER_STATE_STOPPING,
}

RUN_ENDS: Final = {
    RunEnd.DONE: status_pb2.RUN_END_DONE,
    RunEnd.STOPPED: status_pb2.RUN_END_STOPPED,
    RunEnd.FAILED: status_pb2.RUN_END_FAILED,
}

MAX_FAILURES_TOLD: Final = 8
"""Workers' failures in a run's last event."""


def size_of(membership: Membership) -> int:
    """How many train in the round that is on; 0: none is."""
    current = membership.state.round
    return len(current.plan.seats) if current and current.running else 0


def host_status(
    name: str, record: HostRecord | None, obstacles: Iterable[Cause], discovered: float
) -> status_pb2.HostStatus:
    """A host now.

    Args:
        name: its name.
        record: its record; None: the core no longer knows it.
        obstacles: why it is not used, or not all of it.
        discovered: when discovery first named it, in seconds since the epoch.
    """
    return status_pb2.HostStatus(
        name=name,
        slots=record.slots if record else 0,
        connected=record.connected if record else False,
        obstacles=obstacle_messages(obstacles),
        discover_time=timestamp(discovered),
    )


def failure_message(failure: Failure) -> status_pb2.WorkerFailure:
    """What is known of a worker that has failed."""
    cause = cause_with_text(failure.cause)
    return status_pb2.WorkerFailure(cause=cause, traceback=failure.traceback, tail=failure.tail)


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


def run_ended(action: FinishRun, budgets: Budgets, ledger: TimeLedger, now: float) -> status_pb2.RunEnded:
    """How the run has ended, and what became of its time.

    Args:
        action: the core's last one.
        budgets: how many rounds have ended before training was done, by their cause.
        ledger: where the time has gone.
        now: the time, in seconds since the epoch.
    """
    return status_pb2.RunEnded(
        end=RUN_ENDS[action.end],
        time_spent=ledger.time_spent(now),
        recoveries=ledger.recoveries(),
        worker_failures=map(failure_message, action.failures[:MAX_FAILURES_TOLD]),
        failures=budgets.failures.total,
        preemptions=budgets.preemptions.total,
        resizes=budgets.resizes.total,
        unproven=budgets.unproven.total,
    )
