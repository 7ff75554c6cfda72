"""Where the time of a recovery goes, from the event log that `edriver --event-log` writes. Pure but for the reading.

What a line is: edriver/text/event_lines.py. Of each round the line is read that tells when each
member had passed each point on the way into it; times are seconds since the Unix epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edriver.driver.observe.recovery_phases import spans
from edriver.text.message_reader import message_of
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_of, round_times_of

STAGES = ("notified", "stopped", "waiting", "assigned", "built", "synced", "stepped")
"""What each member passes, in this order."""

PHASES = ("detect", "notify", "sever", "rejoin", "rendezvous", "group", "sync", "first step")
"""The phases of a recovery from a kill; each ends when the last member has passed the point that ends it."""


@dataclass(frozen=True, slots=True)
class RoundLine:
    """One round, as the event log records it.

    Attributes:
        round: its id.
        cause: why the round before ended.
        noticed: when the death that ended it was noticed; None: it was no death.
        members: for each member, when it had passed which of STAGES.
        ended: when the driver ended the previous round; None: there was none.
    """

    round: str
    cause: str
    noticed: float | None
    members: tuple[dict[str, float], ...]
    ended: float | None = None

    def last(self, stage: str) -> float | None:
        """When the last member had passed it; None: no member reported it."""
        return max((member[stage] for member in self.members if stage in member), default=None)


def parse(lines: Iterable[str]) -> list[RoundLine]:
    """The rounds of an event log, in order; a last line without its end is passed over."""
    whole = (message_of(status_pb2.Event, json.loads(line)) for line in lines if line.endswith("\n"))
    rounds = [event.round for event in whole if event.HasField("round")]
    return [
        _round(reported)
        for reported in rounds
        if reported.members and (reported.HasField("first_step_time") or reported.HasField("end_time"))
    ]


def _round(reported: status_pb2.Round) -> RoundLine:
    members = (
        {stage: time for stage, time in round_times_of(member.times).items() if stage in STAGES}
        for member in reported.members
        if member.HasField("times")
    )
    noticed = epoch_seconds(reported.detect_time) if reported.HasField("detect_time") else None
    ended = epoch_seconds(reported.previous_end_time) if reported.HasField("previous_end_time") else None
    return RoundLine(str(round_id_of(reported.round_id)), reported.cause.text, noticed, tuple(members), ended)


def read_event_log(path: Path) -> list[RoundLine]:
    """The rounds in a file."""
    with path.open() as file:
        return parse(file)


def phases_of_kill(rounds: Iterable[RoundLine], killed: float) -> dict[str, float]:
    """Seconds of each phase of the recovery from a kill, by "phase: NAME"; empty if the log lacks the recovery.

    Args:
        rounds: the event log.
        killed: when the kill was sent, in seconds since the Unix epoch.
    """
    for line in rounds:
        if line.noticed is not None and line.noticed >= killed:
            ends = [line.noticed, *(line.last(stage) for stage in STAGES)]
            return spans(killed, [(f"phase: {name}", end) for name, end in zip(PHASES, ends, strict=True)])
    return {}
