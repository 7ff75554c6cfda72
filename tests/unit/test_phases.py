"""The phases of a recovery, from an event log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.phases import parse, phases_of_kill
from edriver.wire.conversion import timestamp

KILLED = 100.0


def at(time: float) -> str:
    return timestamp(time).ToJsonString()


def member(worker: int, *times: float | None) -> dict[str, Any]:
    stages = ("notified", "stopped", "waiting", "assigned", "built", "synced", "stepped")
    known = {stage: at(time) for stage, time in zip(stages, times, strict=True) if time is not None}
    return {"worker_id": worker, "host": "a", "times": known}


def line(n: int, noticed: float | None, *members: dict[str, Any]) -> str:
    round_id = {"incarnation": 1, "n": n}
    reported = {"round_id": round_id, "cause": {"text": "because"}, "first_step_time": at(0.0), "members": members}
    return json.dumps({"seq": 1, "round": reported | ({"detect_time": at(noticed)} if noticed else {})}) + "\n"


FIRST = line(1, None, member(0, None, None, 80.0, 81.0, 82.0, 83.0, 84.0))
RECOVERY = line(
    2,
    100.002,
    member(0, 100.004, 100.010, 100.012, 100.014, 100.020, 100.021, 100.051),
    member(1, 100.005, 100.009, 100.011, 100.013, 100.022, 100.023, 100.050),
)
LATER = line(3, 200.0, member(0, *[201.0] * 7))


def test_each_phase_ends_with_the_last_member() -> None:
    found = phases_of_kill(parse([FIRST, RECOVERY, LATER]), KILLED)

    assert {name: round(seconds * 1000) for name, seconds in found.items()} == {
        "phase: detect": 2,
        "phase: notify": 3,
        "phase: sever": 5,
        "phase: rejoin": 2,
        "phase: rendezvous": 2,
        "phase: group": 8,
        "phase: sync": 1,
        "phase: first step": 28,
    }


def test_the_phases_add_up_even_if_a_point_is_missing_or_was_passed_early() -> None:
    odd = line(2, 100.5, member(0, None, 100.4, 101.0, 101.0, 102.0, 102.0, 104.0))

    found = phases_of_kill(parse([odd]), KILLED)

    assert found["phase: notify"] == found["phase: sever"] == 0.0
    assert sum(found.values()) == pytest.approx(4.0)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([FIRST], id="no-death"),
        pytest.param([RECOVERY.replace(at(100.002), at(99.9))], id="a-death-before"),
        pytest.param([FIRST, RECOVERY.rstrip("\n")], id="not-written-to-its-end"),
        pytest.param([json.dumps({"event": "driver"}) + "\n"], id="another-event"),
    ],
)
def test_without_a_round_after_the_kill_there_are_no_phases(lines: list[str]) -> None:
    assert phases_of_kill(parse(lines), KILLED) == {}
