"""Causes as messages (cause.proto), for programs."""

from __future__ import annotations

from edriver.driver.core import cause as why
from edriver.driver.core.cause import Cause
from edriver.driver.core.failures.script_error import ScriptError
from edriver.driver.observe.cause_text import cause_text
from edriver.v1 import cause_pb2


def cause_message(cause: Cause, with_text: bool = False) -> cause_pb2.Cause:
    """A cause as a message; `with_text`: and in words, for those who are shown nothing else of it."""
    told = cause_pb2.Cause(
        kind=cause_pb2.CauseKind.Value(f"CAUSE_KIND_{cause.kind.name}"),
        host=cause.host or "",
        preempted=cause.preempted,
        text=cause_text(cause) if with_text else "",
    )
    if cause.worker is not None:
        told.worker_id, told.host, told.slot = cause.worker.worker_id, cause.worker.host, cause.worker.slot
        if cause.worker.rank is not None:
            told.rank = cause.worker.rank
    _fill(told, cause.detail)
    return told


def _fill(told: cause_pb2.Cause, detail: why.Detail | None) -> None:
    match detail:
        case why.Exit(code, said):
            told.code, told.said = code, said
        case why.Said(text):
            told.said = text
        case why.Lasted(seconds) | why.Unanswered(seconds) | why.GaveUp(seconds):
            told.seconds = seconds
        case why.Stall(phase, seconds):
            told.phase, told.seconds = phase, seconds
        case ScriptError() | why.RaisedByAll(error=ScriptError()) | why.ErrorAgain(error=ScriptError()):
            told.error = str(detail if isinstance(detail, ScriptError) else detail.error)
        case why.Place(int() as slot):
            told.slot = slot
        case why.Drain(slot, said):
            told.said = said
            if slot is not None:
                told.slot = slot
        case why.Rest(slot, seconds):
            told.slot, told.seconds = slot, seconds
        case why.Blame(seconds):
            told.seconds = seconds
