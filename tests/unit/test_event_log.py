"""The event log's lines."""

from __future__ import annotations

import json
import math

from edriver.text.event_lines import event_line, progress_line
from edriver.v1 import rounds_pb2, status_pb2


def test_a_line_is_an_event_with_plain_values() -> None:
    member = status_pb2.Member(worker_id=7, host="a", slot=1)
    told = status_pb2.Round(
        round_id=rounds_pb2.RoundId(incarnation=1, n=3),
        kind=status_pb2.ROUND_CAUSE_FAILURE,
        members=[member],
        noticed=99.5,
        assigned=100.0,
    )
    first = event_line(status_pb2.Event(seq=1, time=100.0, text="round 1.3", round=told))
    assert first.count("\n") == 1
    assert json.loads(first) == {
        "seq": "1",
        "time": 100.0,
        "text": "round 1.3",
        "round": {
            "round_id": {"incarnation": 1, "n": "3"},
            "cause": "",
            "kind": "ROUND_CAUSE_FAILURE",
            "members": [{"worker_id": "7", "host": "a", "slot": 1}],
            "noticed": 99.5,
            "assigned": 100.0,
            "steps_lost": "0",
        },
    }
    second = event_line(status_pb2.Event(seq=2, time=101.0, run_ended=status_pb2.RunEnded(end=status_pb2.RUN_END_DONE)))
    assert json.loads(second) == {"seq": "2", "time": 101.0, "text": "", "run_ended": {"end": "RUN_END_DONE"}}


def test_a_line_about_the_progress() -> None:
    progress = status_pb2.Progress(steps=12, step_rate=2.5, reported={"loss": math.nan})
    assert json.loads(progress_line(101.5, progress)) == {
        "time": 101.5,
        "progress": {
            "steps": "12",
            "step_rate": 2.5,
            "samples_done": "0",
            "samples": "0",
            "sample_rate": 0.0,
            "reported": {"loss": "NaN"},
        },
    }
