"""The events of a run whose driver is a test."""

from __future__ import annotations

from collections.abc import Sequence

from edriver.driver.observe.cause_text import Line
from edriver.driver.observe.event_history import EventHistory
from edriver.model import actions, events
from edriver.model.cause import Cause
from edriver.v1 import status_pb2


def told(
    history: EventHistory,
    event: events.Event,
    step: Sequence[actions.Action],
    loss: Cause | None = None,
    lines: Sequence[Line] = (),
) -> list[status_pb2.Event]:
    """What a step of the core has brought; if it has ended the run, the agents have nothing more to say."""
    found = history.take(event, step, loss, lines)
    for action in step:
        if isinstance(action, actions.FinishRun):
            found += history.end(action)
    return found
