"""Each cause as a message, and what it counts as."""

from __future__ import annotations

import enum
from dataclasses import replace

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from edriver.driver.observe.cause_text import cause_with_text
from edriver.model import cause as why
from edriver.model.cause import AgentFaultKind, Cause, CauseKind, Halt, RoundEnd, WorkerName
from edriver.model.script_error import ScriptError
from edriver.v1 import cause_pb2
from edriver.wire.causes import cause_message, halt_message, halt_of
from edriver.wire.conversion import duration

FIRST, SECOND, NEW = WorkerName(1, "a", 0, 0), WorkerName(2, "b", 1, 1), WorkerName(3, "b", 0, None)
ERROR = ScriptError("ValueError", "train.py", 17, "train")
SILENT = why.AgentFault(AgentFaultKind.SILENT, seconds=5.0)
KILLED = Cause(CauseKind.KILLED, FIRST, detail=why.Exit(-9))
SHORT = Cause(CauseKind.WORKERS_AWAITED, detail=why.Shortage(1, 2))


@pytest.mark.parametrize(
    ("cause", "reported"),
    [
        pytest.param(
            Cause(CauseKind.OUT_OF_MEMORY, SECOND, detail=why.Exit(-9, memory_limit=7), preempted=True),
            {"worker_id": 2, "rank": 1, "host": "b", "slot": 1, "code": -9, "memory_limit": 7, "preempted": True},
            id="killed",
        ),
        pytest.param(
            Cause(CauseKind.KILLED, NEW, detail=why.Exit(-6, recorded=ERROR)),
            {"worker_id": 3, "host": "b", "slot": 0, "code": -6, "error": "ValueError at train.py:17, in train"},
            id="killed-after-an-error",
        ),
        pytest.param(
            Cause(CauseKind.COLLECTIVES_DIFFER, NEW, detail=why.Mismatch(-6, ERROR._replace(kind=""), ())),
            {"worker_id": 3, "host": "b", "slot": 0, "code": -6, "error": "train.py:17, in train"},
            id="called-another-collective",
        ),
        pytest.param(
            Cause(CauseKind.KILLED, NEW, detail=why.Exit(-11, place=ERROR._replace(kind=""))),
            {"worker_id": 3, "host": "b", "slot": 0, "code": -11, "error": "train.py:17, in train"},
            id="crashed-at-a-known-place",
        ),
        pytest.param(
            Cause(CauseKind.RAISED, NEW, detail=ERROR),
            {"worker_id": 3, "host": "b", "slot": 0, "error": "ValueError at train.py:17, in train"},
            id="raised-without-a-rank",
        ),
        pytest.param(
            Cause(CauseKind.NO_BOUNDARY, FIRST, detail=why.NoBoundary(10, "train.py:31 (train)")),
            {
                "worker_id": 1,
                "rank": 0,
                "host": "a",
                "slot": 0,
                "count": 10,
                "place": "train.py:31 (train)",
            },
            id="no-boundary",
        ),
        pytest.param(
            Cause(
                CauseKind.SAME_SAMPLES, FIRST, detail=why.SameSamples("RandomSampler", "train.py:20 (train)", SECOND)
            ),
            {
                "worker_id": 1,
                "rank": 0,
                "host": "a",
                "slot": 0,
                "detail": "RandomSampler",
                "place": "train.py:20 (train)",
            },
            id="same-samples",
        ),
        pytest.param(
            Cause(CauseKind.NOT_FINITE, FIRST, detail=why.NotFinite("loss", "inf", "train.py:40 (train)", 120)),
            {
                "worker_id": 1,
                "rank": 0,
                "host": "a",
                "slot": 0,
                "detail": "loss",
                "value": float("inf"),
                "place": "train.py:40 (train)",
                "step": 120,
            },
            id="not-finite",
        ),
        pytest.param(
            Cause(CauseKind.STALLED, FIRST, detail=why.Stall("eval", 9.0)),
            {"worker_id": 1, "rank": 0, "host": "a", "slot": 0, "phase": "eval", "duration": duration(9.0)},
            id="stalled",
        ),
        pytest.param(
            Cause(CauseKind.STALLED, FIRST, detail=why.Stall("step", 9.0, ERROR._replace(kind=""))),
            {
                "worker_id": 1,
                "rank": 0,
                "host": "a",
                "slot": 0,
                "phase": "step",
                "duration": duration(9.0),
                "error": "train.py:17, in train",
            },
            id="stalled-at-a-known-place",
        ),
        pytest.param(
            Cause(CauseKind.SILENT, FIRST, detail=why.Silence(9.0, Halt.TRACED)),
            {
                "worker_id": 1,
                "rank": 0,
                "host": "a",
                "slot": 0,
                "duration": duration(9.0),
                "halt": cause_pb2.HALT_TRACED,
            },
            id="silent-for-a-known-reason",
        ),
        pytest.param(
            Cause(CauseKind.HOST_LOST, host="b", detail=SILENT),
            {"host": "b", "agent_fault": cause_pb2.AGENT_FAULT_SILENT, "duration": duration(5.0)},
            id="host-lost",
        ),
        pytest.param(
            Cause(CauseKind.DRAINED, host="b", detail=why.DrainTarget(1, "it runs hot")),
            {"host": "b", "slot": 1, "detail": "it runs hot"},
            id="drained",
        ),
        pytest.param(
            Cause(CauseKind.TIMED_OUT, detail=why.TimedOut(600.0, SHORT)), {"duration": duration(600.0)}, id="timed-out"
        ),
    ],
)
def test_a_cause_as_a_message(cause: Cause, reported: dict[str, object]) -> None:
    kind = cause_pb2.CauseKind.Value(f"CAUSE_KIND_{cause.kind.name}")
    assert cause_message(cause) == cause_pb2.Cause(kind=kind, **reported)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "wire", "prefix"),
    [
        pytest.param(CauseKind, cause_pb2.CauseKind, "CAUSE_KIND", id="cause"),
        pytest.param(AgentFaultKind, cause_pb2.AgentFault, "AGENT_FAULT", id="agent-fault"),
    ],
)
def test_each_kind_of_the_model_is_one_of_the_wire(model: type[enum.Enum], wire: EnumTypeWrapper, prefix: str) -> None:
    assert {f"{prefix}_UNSPECIFIED", *(f"{prefix}_{kind.name}" for kind in model)} == set(wire.keys())


def test_only_a_cause_that_stands_alone_has_a_text() -> None:
    assert cause_message(KILLED).text == ""
    assert cause_with_text(KILLED).text == "worker 1 (rank 0, a:0) was killed by SIGKILL"


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        pytest.param(KILLED, RoundEnd.FAILURE, id="killed"),
        pytest.param(replace(KILLED, preempted=True), RoundEnd.PREEMPTION, id="killed-while-leaving"),
        pytest.param(Cause(CauseKind.COLLECTIVE_FAILED, FIRST), RoundEnd.FAILURE, id="collective"),
        pytest.param(Cause(CauseKind.MEMBERS_CHANGE, detail=why.Change(1, 0)), RoundEnd.RESIZE, id="newcomer"),
        pytest.param(
            Cause(CauseKind.MEMBERS_CHANGE, detail=why.Change(0, 1), preempted=True), RoundEnd.PREEMPTION, id="drain"
        ),
        pytest.param(
            Cause(CauseKind.PEER_UNPROVEN, FIRST, detail=why.ReportedText("")), RoundEnd.UNPROVEN, id="stranger"
        ),
        pytest.param(Cause(CauseKind.ALL_DONE, detail=why.Done(1, 1)), RoundEnd.DONE, id="done"),
    ],
)
def test_what_the_end_of_a_round_counts_as(cause: Cause, end: RoundEnd) -> None:
    assert cause.round_end is end


def test_what_keeps_a_process_from_running_is_the_same_after_the_way_to_the_driver() -> None:
    known = [None, *Halt]
    assert [halt_of(halt_message(halt)) for halt in known] == known
    assert halt_of(99) is None  # type: ignore[arg-type]  # a later release's
