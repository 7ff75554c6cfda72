"""The cause that an event is of: why a worker is lost or suspected. Part of the core."""

from __future__ import annotations

import signal
from typing import Final, TypeAlias

from edriver.model import events
from edriver.model.cause import Cause, CauseKind, Duration, Exit, Stall, WorkerName
from edriver.model.script_error import script_error

Loss: TypeAlias = (
    events.WorkerExited
    | events.WorkerEnding
    | events.WorkerFailed
    | events.LeaseExpired
    | events.WorkerStalled
    | events.WorkerStuck
    | events.ExitOverdue
)

_OUTER_SIGNALS: Final = (-signal.SIGKILL, -signal.SIGTERM)


def loss_of(event: Loss, worker: WorkerName) -> Cause:
    """Why an event has the worker lost or suspected."""
    match event:
        case events.WorkerExited(code=code, reason=events.ExitReason(kind, said, memory_limit)):
            return Cause(kind, worker, detail=Exit(code, said, memory_limit))
        case events.WorkerExited(_, code, recorded=recorded):
            error = script_error(recorded.traceback) if recorded else None
            return Cause(CauseKind.KILLED if code < 0 else CauseKind.EXITED, worker, detail=Exit(code, recorded=error))
        case events.WorkerEnding():
            return Cause(CauseKind.ENDED, worker)
        case events.WorkerFailed(_, traceback):
            return Cause(CauseKind.RAISED, worker, detail=script_error(traceback))
        case events.LeaseExpired(_, lease):
            return Cause(CauseKind.SILENT, worker, detail=Duration(lease))
        case events.WorkerStalled(_, _, phase, seconds):
            return Cause(CauseKind.STALLED, worker, detail=Stall(phase, seconds))
        case events.WorkerStuck():
            return Cause(CauseKind.STUCK, worker)
        case events.ExitOverdue(_, seconds):
            return Cause(CauseKind.EXIT_OVERDUE, worker, detail=Duration(seconds))


def killed_from_outside(cause: Cause) -> bool:
    """Whether a worker without an order to end was ended by a signal that it cannot have caused itself.

    A kill by the kernel for lack of memory counts as a separate kind, also if that is only likely.
    """
    return cause.kind is CauseKind.KILLED and isinstance(cause.detail, Exit) and cause.detail.code in _OUTER_SIGNALS
