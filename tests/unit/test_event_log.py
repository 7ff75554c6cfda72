"""The event log's lines."""

from __future__ import annotations

import json
import math

from edriver.text.event_lines import event_line, progress_line
from edriver.v1 import rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp


def test_a_line_is_an_event_with_plain_values() -> None:
    member = status_pb2.Member(worker_id=7, host="a", slot=1)
    reported = status_pb2.Round(
        round_id=rounds_pb2.RoundId(incarnation=1, n=3),
        kind=status_pb2.ROUND_KIND_FAILURE,
        members=[member],
        detect_time=timestamp(99.5),
        assign_time=timestamp(100.0),
        phases=status_pb2.RecoveryPhases(detect=duration(0.0015)),
    )
    first = event_line(status_pb2.Event(seq=1, time=timestamp(100.000123), text="round 1.3", round=reported))
    assert first.count("\n") == 1
    assert json.loads(first) == {
        "seq": "1",
        "time": "1970-01-01T00:01:40.000123Z",
        "text": "round 1.3",
        "round": {
            "round_id": {"incarnation": 1, "n": "3"},
            "kind": "ROUND_KIND_FAILURE",
            "members": [{"worker_id": "7", "host": "a", "slot": 1}],
            "detect_time": "1970-01-01T00:01:39.500Z",
            "assign_time": "1970-01-01T00:01:40Z",
            "phases": {"detect": "0.001500s"},
            "steps_lost": "0",
        },
    }
    second = event_line(
        status_pb2.Event(seq=2, time=timestamp(101.0), run_ended=status_pb2.RunEnded(end=status_pb2.RUN_END_DONE))
    )
    assert json.loads(second) == {
        "seq": "2",
        "time": "1970-01-01T00:01:41Z",
        "text": "",
        "run_ended": {
            "end": "RUN_END_DONE",
            "worker_failures": [],
            "failures": 0,
            "preemptions": 0,
            "resizes": 0,
            "unproven": 0,
            "rounds": 0,
            "size": 0,
            "checkpoints": [],
        },
    }


def test_a_line_about_an_interruption() -> None:
    over = status_pb2.Interruption(
        kind=status_pb2.INTERRUPTION_KIND_STALL,
        start_time=timestamp(100.0),
        duration=duration(2.5),
        round_id=rounds_pb2.RoundId(incarnation=1, n=3),
        size=2,
    )
    assert json.loads(event_line(status_pb2.Event(seq=3, time=timestamp(103.0), interruption=over))) == {
        "seq": "3",
        "time": "1970-01-01T00:01:43Z",
        "text": "",
        "interruption": {
            "kind": "INTERRUPTION_KIND_STALL",
            "start_time": "1970-01-01T00:01:40Z",
            "duration": "2.500s",
            "round_id": {"incarnation": 1, "n": "3"},
            "steps_lost": "0",
            "size": 2,
            "failed_rounds": 0,
        },
    }


def test_a_line_about_the_progress() -> None:
    progress = status_pb2.Progress(steps=12, step_rate=2.5, reported={"loss": math.nan})
    assert json.loads(progress_line(101.5, progress)) == {
        "time": "1970-01-01T00:01:41.500Z",
        "progress": {
            "steps": "12",
            "step_rate": 2.5,
            "samples_done": "0",
            "samples": "0",
            "sample_rate": 0.0,
            "reported": {"loss": "NaN"},
        },
    }
