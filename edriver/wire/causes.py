"""Causes as messages (cause.proto), for programs.

The driver's text goes beside the data where people are shown nothing else. No program reads a text to find out what
has happened.
"""

from __future__ import annotations

import math
from typing import Final

from edriver.model import cause as why
from edriver.model.cause import Cause, Halt
from edriver.model.script_error import ScriptError
from edriver.v1 import cause_pb2
from edriver.wire.conversion import duration

MAX_COUNT: Final = 2**32 - 1
"""What Cause.count can hold."""


def cause_message(cause: Cause, text: str = "") -> cause_pb2.Cause:
    """A cause as a message, with a text for people who see nothing else of it."""
    message = cause_pb2.Cause(
        kind=cause_pb2.CauseKind.Value(f"CAUSE_KIND_{cause.kind.name}"),
        host=cause.host or "",
        preempted=cause.preempted,
        requester=cause.requester,
        text=text,
    )
    if cause.worker is not None:
        message.worker_id, message.host, message.slot = cause.worker.worker_id, cause.worker.host, cause.worker.slot
        if cause.worker.rank is not None:
            message.rank = cause.worker.rank
    _fill(message, cause.detail)
    return message


def halt_message(halt: Halt | None) -> cause_pb2.Halt.ValueType:
    """What keeps a process from running, as an agent reports it; None: nothing that is known."""
    return cause_pb2.HALT_UNSPECIFIED if halt is None else cause_pb2.Halt.Value(f"HALT_{halt.name}")


def halt_of(message: cause_pb2.Halt.ValueType) -> Halt | None:
    """The same, back; None also for what only later releases know."""
    return next((halt for halt in Halt if halt_message(halt) == message), None)


def _fill(message: cause_pb2.Cause, detail: why.Detail | None) -> None:
    match detail:
        case why.Exit(code, reason, memory_limit, recorded, place):
            message.code, message.detail = code, reason
            if (error := recorded or place) is not None:
                message.error = str(error)
            if memory_limit is not None:
                message.memory_limit = memory_limit
        case why.Mismatch(code, place):
            message.code, message.error = code, "" if place is None else str(place)
        case why.MemoryKill(pid, memory_limit):
            message.detail = str(pid or "")
            if memory_limit is not None:
                message.memory_limit = memory_limit
        case why.AgentFault(fault, reason, seconds):
            message.agent_fault, message.detail = cause_pb2.AgentFault.Value(f"AGENT_FAULT_{fault.name}"), reason
            if seconds:
                message.duration.CopyFrom(duration(seconds))
        case why.ReportedText(text):
            message.detail = text
        case why.Duration(seconds) | why.Unanswered(seconds) | why.TimedOut(seconds):
            message.duration.CopyFrom(duration(seconds))
        case why.Silence(seconds, halt):
            message.halt = halt_message(halt)
            message.duration.CopyFrom(duration(seconds))
        case why.Stall(phase, seconds, place):
            message.phase, message.error = phase, "" if place is None else str(place)
            message.duration.CopyFrom(duration(seconds))
        case ScriptError() | why.RaisedByAll(error=ScriptError()) | why.RepeatedError(error=ScriptError()):
            message.error = str(detail if isinstance(detail, ScriptError) else detail.error)
        case why.FailedResize(size, _, cause):
            _fill(message, cause.detail)
            message.count = size
        case why.RepeatedStall(place, _, limit):
            message.error = str(place)
            if math.isfinite(limit):
                message.duration.CopyFrom(duration(limit))
        case why.RefusedSize(size, _, error):
            message.count, message.error = size, "" if error is None else str(error)
        case why.SlotTarget(int() as slot):
            message.slot = slot
        case why.DrainTarget(slot, reason):
            message.detail = reason
            if slot is not None:
                message.slot = slot
        case why.SlotQuarantine(slot, seconds):
            message.slot = slot
            message.duration.CopyFrom(duration(seconds))
        case why.HostQuarantine(seconds):
            message.duration.CopyFrom(duration(seconds))
        case why.NoBoundary(steps, place):
            message.count, message.place = min(steps, MAX_COUNT), place
        case why.SameSamples(source, place):
            message.detail, message.place = source, place
        case why.NotFinite(name, value, place, step):
            message.detail, message.value, message.place = name, float(value), place
            if step:
                message.step = step
        case why.Count(count) | why.SpareSlots(count) | why.UnfitSlots(count):
            message.count = count
