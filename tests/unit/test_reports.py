"""The events that messages of agents and workers become."""

from __future__ import annotations

import pytest

from edriver.driver.observe.cause_text import worker_words
from edriver.model import events
from edriver.model.cause import AGENT_KNOWN, Cause, CauseKind, Exit, WorkerName
from edriver.model.events import loss_of
from edriver.model.ids import RoundId
from edriver.model.script_error import ScriptError
from edriver.v1 import agent_pb2, cause_pb2, checkpoints_pb2, rounds_pb2
from edriver.v1.notification_pb2 import Report, StacksOnStderr, WorkerIdle, WorkerStalled, WorkerWaiting
from edriver.wire.conversion import duration
from edriver.wire.reports import STACKS_ON_STDERR, checkpoints_held, event_of_report, exit_of

WORKER = WorkerName(1, "a", 0, 0)


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        pytest.param(None, Cause(CauseKind.KILLED, WORKER, detail=Exit(-9)), id="nothing"),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_OUT_OF_MEMORY, memory_limit=7),
            Cause(CauseKind.OUT_OF_MEMORY, WORKER, detail=Exit(-9, memory_limit=7)),
            id="out-of-memory",
        ),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY),
            Cause(CauseKind.MAYBE_OUT_OF_MEMORY, WORKER, detail=Exit(-9)),
            id="perhaps",
        ),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_NOT_STARTED, detail="no such file"),
            Cause(CauseKind.NOT_STARTED, WORKER, detail=Exit(-9, "no such file")),
            id="not-started",
        ),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_SUCCESS, detail="trust me"),
            Cause(CauseKind.KILLED, WORKER, detail=Exit(-9)),
            id="what-no-agent-can-know",
        ),
    ],
)
def test_what_an_agent_knows_of_an_exit_is_its_cause(message: cause_pb2.Cause | None, lost: Cause) -> None:
    assert loss_of(exit_of(agent_pb2.WorkerExited(worker_id=1, code=-9, cause=message)), WORKER) == lost


@pytest.mark.parametrize("kind", sorted(AGENT_KNOWN, key=str))
def test_what_an_agent_can_know_of_an_exit_has_words(kind: CauseKind) -> None:
    message = cause_pb2.Cause(kind=cause_pb2.CauseKind.Value(f"CAUSE_KIND_{kind.name}"))
    cause = loss_of(exit_of(agent_pb2.WorkerExited(worker_id=1, code=-9, cause=message)), WORKER)
    assert cause.kind is kind
    assert worker_words(cause)


ROUND = rounds_pb2.RoundId(incarnation=1, n=3)


@pytest.mark.parametrize(
    ("message", "stacks"),
    [
        pytest.param(WorkerStalled(stacks="at train.py:7"), "at train.py:7", id="its-own-stacks"),
        pytest.param(WorkerStalled(stacks_on_stderr=StacksOnStderr()), STACKS_ON_STDERR, id="on-its-standard-error"),
        pytest.param(WorkerStalled(), "", id="a-worker-that-cannot-read-its-stacks"),
    ],
)
def test_a_stall_is_one_whatever_is_known_of_its_stacks(message: WorkerStalled, stacks: str) -> None:
    message.MergeFrom(WorkerStalled(round_id=ROUND, phase="eval", duration=duration(60.0)))
    stalled = events.WorkerStalled(7, RoundId(1, 3), "eval", 60.0, stacks)
    assert event_of_report(7, Report(worker_stalled=message)) == stalled


@pytest.mark.parametrize(("message", "seconds"), [(WorkerIdle(duration=duration(12.5)), 12.5), (WorkerIdle(), 0.0)])
def test_an_idle_script_is_no_stall(message: WorkerIdle, seconds: float) -> None:
    message.round_id.CopyFrom(ROUND)
    assert event_of_report(7, Report(worker_idle=message)) == events.WorkerIdle(7, RoundId(1, 3), seconds)


GLOO = "what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 668 vs 4. Received"
CRASH = 'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "train.py", line 14 in log\n'


@pytest.mark.parametrize(
    ("code", "tail", "kind"),
    [
        pytest.param(-6, f"terminate called\n{GLOO}", CauseKind.COLLECTIVES_DIFFER, id="gloo-met-another-collective"),
        pytest.param(134, GLOO, CauseKind.COLLECTIVES_DIFFER, id="in-a-shell"),
        pytest.param(-6, "Assertion failed", CauseKind.KILLED, id="another-abort"),
        pytest.param(-9, GLOO, CauseKind.KILLED, id="killed-after-it"),
    ],
)
def test_a_process_that_ends_because_ranks_called_different_collectives(code: int, tail: str, kind: CauseKind) -> None:
    message = agent_pb2.WorkerExited(worker_id=1, code=code, tail=tail, crash_stacks=CRASH)
    place = ScriptError("", "train.py", 14, "log")
    assert loss_of(exit_of(message), WORKER) == Cause(kind, WORKER, detail=Exit(code, place=place))


def test_where_a_worker_was_when_it_left_a_round_is_a_line_of_its_script() -> None:
    at = ['  File "/home/me/train.py", line 24, in train', "", "nonsense"]
    found = [event_of_report(1, Report(worker_waiting=WorkerWaiting(left_at=line))) for line in at]
    assert [event.left_at for event in found if isinstance(event, events.WorkerWaiting)] == [
        ScriptError("", "/home/me/train.py", 24, "train"),
        None,
        None,
    ]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(checkpoints_pb2.HostCheckpoints(ended=True), id="now"),
        pytest.param(checkpoints_pb2.HostCheckpoints(), id="from-a-release-before"),
    ],
)
def test_the_end_of_a_checkpoint_server_is_an_event_of_its_own(message: checkpoints_pb2.HostCheckpoints) -> None:
    assert checkpoints_held("a", 1, message) == events.CheckpointServerEnded("a", 1)


def test_a_checkpoint_server_that_holds_nothing_has_not_ended() -> None:
    message = checkpoints_pb2.HostCheckpoints(address="a:1", limit=9)
    assert checkpoints_held("a", 1, message) == events.CheckpointsHeld("a", 1, "a:1", limit=9)
