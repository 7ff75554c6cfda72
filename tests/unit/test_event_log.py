"""The event log's lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from edriver.driver.event_log import EventLog
from edriver.v1 import rounds_pb2, status_pb2


def test_a_line_is_an_event_with_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    member = status_pb2.Member(worker_id=7, host="a", slot=1)
    told = status_pb2.Round(
        round_id=rounds_pb2.RoundId(incarnation=1, n=3),
        kind=status_pb2.ROUND_CAUSE_FAILURE,
        members=[member],
        noticed=99.5,
        assigned=100.0,
    )
    log = EventLog(path)
    log.write([status_pb2.Event(seq=1, time=100.0, text="round 1.3", round=told)])
    log.write([])
    log.write([status_pb2.Event(seq=2, time=101.0, run_ended=status_pb2.RunEnded(success=True))])
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first == {
        "seq": 1,
        "time": 100.0,
        "text": "round 1.3",
        "round": {
            "round_id": "1.3",
            "kind": "ROUND_CAUSE_FAILURE",
            "members": [{"worker_id": 7, "host": "a", "slot": 1}],
            "noticed": 99.5,
            "assigned": 100.0,
        },
    }
    assert second == {"seq": 2, "time": 101.0, "run_ended": {"success": True}}


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(tmp_path)
    with caplog.at_level(logging.WARNING):
        for seq in (1, 2, 3):
            log.write([status_pb2.Event(seq=seq)])
    assert [record.getMessage() for record in caplog.records] == [
        f"the event log {tmp_path} cannot be written: Is a directory"
    ]
