"""Causes as they stand in a case: their kind, whom they are about, and what else is known, as data.

killed worker 2 (rank 1, b:0) code=-9 preempted
workers-awaited found=1 needed=2 troubles=[drained host b reason='it runs hot']
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass

from edriver.model.cause import Cause, StepGroup, WorkerName
from edriver.model.ids import RoundId, Version
from edriver.model.script_error import ScriptError


def shown(cause: Cause) -> str:
    """One line."""
    return " ".join(_parts(cause))


def name_shown(worker: WorkerName) -> str:
    """A worker."""
    rank = "no rank" if worker.rank is None else f"rank {worker.rank}"
    return f"worker {worker.worker_id} ({rank}, {worker.host}:{worker.slot})"


def _parts(cause: Cause) -> Iterator[str]:
    yield cause.kind.value
    if cause.worker is not None:
        yield name_shown(cause.worker)
    if cause.host is not None:
        yield f"host {cause.host}"
    detail = cause.detail
    if isinstance(detail, tuple):  # a version, an error
        yield _value(detail)
    elif is_dataclass(detail):
        for field in fields(detail):
            value = getattr(detail, field.name)
            if field.default is MISSING or value != field.default:
                yield f"{field.name}={_value(value)}"
    if cause.requester:
        yield f"by {cause.requester}"
    if cause.preempted:
        yield "preempted"


def _value(value: object) -> str:
    match value:
        case Cause():
            return f"[{shown(value)}]"
        case WorkerName():
            return name_shown(value)
        case StepGroup(boundaries, workers, more):
            others = f" and {more} more" if more else ""
            return f"{', '.join(map(name_shown, workers))}{others} after {boundaries}"
        case ScriptError() | Version() | RoundId():
            return str(value)
        case enum.Enum():
            return str(value.value)
        case tuple():
            return f"[{'; '.join(shown(each) if isinstance(each, Cause) else _value(each) for each in value)}]"
        case float():
            return f"{value:g}"
        case _:
            return repr(value)
