"""What workers report of their script that looks like a mistake: each once, with its line."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edriver.commands.status import counts
from edriver.driver.agents.agent_messages import AgentMessages
from edriver.driver.agents.fault_log import FaultLog
from edriver.driver.journal.entries import event_from_bytes, event_to_bytes
from edriver.driver.observe.cause_text import Line
from edriver.driver.observe.script_warnings import MAX_DRAWN, ScriptWarnings
from edriver.driver.run.driver_state import state_codec
from edriver.model import events
from edriver.model.cause import Cause, CauseKind, NoBoundary, NotFinite, SameSamples, WorkerName
from edriver.model.ids import RoundId
from edriver.model.limits import MAX_REPORTED_NAMES
from edriver.model.plan import SINGLE_WORKER
from edriver.text.progress_text import progress_text
from edriver.v1 import agent_pb2, notification_pb2, status_pb2
from edriver.wire.conversion import round_id_message
from edriver.worker import context
from edriver.worker.state.object_state import ObjectState
from edriver.worker.watch.script_reports import STEPS_WITHOUT_BOUNDARY, ScriptReports
from tests.unit.event_story import Story

ROUND = RoundId(1, 2)
FIRST, SECOND = WorkerName(1, "a", 0, 0), WorkerName(2, "b", 1, 1)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[notification_pb2.ScriptWarning]:
    """What this process has reported; it is in round 1.2, and has passed 7 boundaries."""
    monkeypatch.setattr(context, "current", context.WorkerContext())
    found: list[notification_pb2.ScriptWarning] = []
    reports = context.current.part(ScriptReports)
    reports.connect(lambda report: found.append(report.script_warning), lambda: (ROUND, 7))
    return found


def test_a_value_that_is_not_finite_is_reported_once_with_its_line(
    sent: list[notification_pb2.ScriptWarning],
) -> None:
    state = ObjectState()
    state.report(loss=1.0, accuracy=0.5)
    for loss in (math.nan, math.nan, 2.0, math.inf):
        state.report(loss=loss)
    state.report(gradient=-math.inf, loss=math.nan)
    assert [(warning.not_finite.name, str(warning.not_finite.value)) for warning in sent] == [
        ("loss", "nan"),
        ("gradient", "-inf"),
    ]
    assert sent[0].round_id == round_id_message(ROUND)
    assert sent[0].boundaries == 7
    here = test_a_value_that_is_not_finite_is_reported_once_with_its_line.__code__
    assert sent[0].place == f"test_script_warnings.py:{here.co_firstlineno + 6} ({here.co_name})"


def test_what_is_reported_in_a_rehearsal_is_not_the_runs(sent: list[notification_pb2.ScriptWarning]) -> None:
    state = ObjectState()
    with state.rehearsal():
        state.report(loss=math.nan)
    assert sent == []


def test_without_a_driver_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "current", context.WorkerContext())
    ObjectState().report(loss=math.nan)


def not_finite(worker_id: int, name: str, value: str = "nan", boundaries: int = 7) -> events.ScriptWarned:
    return events.ScriptWarned(worker_id, ROUND, boundaries, NotFinite(name, value, "train.py:40 (train)"))


def event_of(messages: AgentMessages, worker_id: int, name: str) -> events.Event | None:
    warning = notification_pb2.ScriptWarning(
        round_id=round_id_message(ROUND),
        boundaries=7,
        place="train.py:40 (train)",
        not_finite=notification_pb2.NotFinite(name=name, value=math.nan),
    )
    sent = agent_pb2.WorkerReport(worker_id=worker_id, report=notification_pb2.Report(script_warning=warning))
    peer: Any = SimpleNamespace(identity=SimpleNamespace(workers={1, 2}))
    event, _ = messages.taken(peer, agent_pb2.ConnectRequest(worker_report=sent))
    return event


def test_the_first_report_of_a_name_is_an_event_and_those_of_other_workers_are_not() -> None:
    messages = AgentMessages(agent_pb2.Welcome(), lambda _: None, lambda _: None, FaultLog())
    assert event_of(messages, 2, "loss") == not_finite(2, "loss")
    assert event_of(messages, 1, "loss") is None
    assert event_of(messages, 1, "gradient") == not_finite(1, "gradient")
    for number in range(MAX_REPORTED_NAMES):
        event_of(messages, 1, f"name {number}")
    assert event_of(messages, 1, "one more") is None, "a worker could fill the driver's memory"


def test_a_warning_that_only_later_releases_know_is_no_event() -> None:
    messages = AgentMessages(agent_pb2.Welcome(), lambda _: None, lambda _: None, FaultLog())
    report = notification_pb2.Report(script_warning=notification_pb2.ScriptWarning())
    sent = agent_pb2.ConnectRequest(worker_report=agent_pb2.WorkerReport(worker_id=1, report=report))
    peer: Any = SimpleNamespace(identity=SimpleNamespace(workers={1}))
    assert messages.taken(peer, sent) == (None, b"")


def test_the_cause_has_the_worker_and_the_step_and_comes_once() -> None:
    warnings = ScriptWarnings(lambda round_id, boundaries: 100 * round_id.n + boundaries)
    expected = NotFinite("loss", "nan", "train.py:40 (train)", 207)
    assert warnings.cause(not_finite(2, "loss"), SECOND) == Cause(CauseKind.NOT_FINITE, SECOND, detail=expected)
    assert warnings.cause(not_finite(1, "loss", "inf"), FIRST) is None, "it has been said, before a resume perhaps"
    assert warnings.cause(not_finite(1, "lr", "inf"), FIRST) is not None


def test_the_event_goes_through_the_journal() -> None:
    event = not_finite(2, "loss")
    assert event_from_bytes(event_to_bytes(event)) == event


def test_a_warning_is_an_event_and_is_counted_by_its_kind() -> None:
    story = Story()
    story.begun()
    cause = Cause(CauseKind.NOT_FINITE, FIRST, detail=NotFinite("loss", "nan", "train.py:40 (train)", 1))
    (event,) = story.event_history.take(events.Ticked(), (), None, [Line(cause)])
    assert event.HasField("remark")
    assert event.cause.detail == "loss"
    assert story.event_history.view.script_warnings["not_finite"] == 1
    assert "round 1.1" in story.event_history.view.doing, "a warning is not what the run does"


# ---- boundaries -----------------------------------------------------------------------------------------------------


class Standing:
    """Where a worker stands in its round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> None:
        monkeypatch.setattr(context, "current", context.WorkerContext())
        self.reports = context.current.part(ScriptReports)
        self.boundaries = 0
        self.round_id = ROUND
        self.sent: list[notification_pb2.ScriptWarning] = []
        self.reports.connect(
            lambda report: self.sent.append(report.script_warning), lambda: (self.round_id, self.boundaries)
        )
        self.rank = rank
        self.begin(ROUND)

    def begin(self, round_id: RoundId) -> None:
        self.round_id, self.boundaries = round_id, 0
        self.reports.synced(replace(SINGLE_WORKER, round_id=round_id, rank=self.rank, size=3))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.reports.step_begins()

    @property
    def said(self) -> list[tuple[int, bool]]:
        return [(warning.no_boundary.steps, warning.no_boundary.returned) for warning in self.sent]


def train_nothing() -> None:
    pass


def test_ten_steps_without_a_boundary_are_reported_once_with_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Standing(monkeypatch)
    worker.train(STEPS_WITHOUT_BOUNDARY - 1)
    assert worker.sent == []
    worker.train(50)
    worker.begin(RoundId(1, 3))
    worker.train(50)
    assert worker.said == [(STEPS_WITHOUT_BOUNDARY, False)]
    worker.reports.entered()
    worker.begin(RoundId(1, 4))
    worker.train(50)
    assert worker.said == [(STEPS_WITHOUT_BOUNDARY, False)] * 2, "another loop"
    line = Standing.train.__code__.co_firstlineno + 2
    assert worker.sent[0].place == f"test_script_warnings.py:{line} (train)"


def test_where_a_boundary_is_passed_in_time_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Standing(monkeypatch)
    worker.train(STEPS_WITHOUT_BOUNDARY - 1)
    worker.boundaries = 1
    worker.train(50)
    worker.begin(RoundId(1, 3))
    worker.train(STEPS_WITHOUT_BOUNDARY - 1)
    assert worker.sent == []
    assert worker.reports.uncounted_steps == 0


def test_batches_count_where_no_step_of_an_optimizer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Standing(monkeypatch)
    for _ in range(30):
        worker.reports.batch_recorded()
    assert worker.said == [(STEPS_WITHOUT_BOUNDARY, False)]
    worker = Standing(monkeypatch)
    for _ in range(STEPS_WITHOUT_BOUNDARY - 1):
        worker.reports.batch_recorded()
        worker.reports.step_begins()
    assert worker.said == [], "a step and its batch are one"


def test_a_return_without_a_boundary_is_reported_with_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Standing(monkeypatch)
    worker.train(3)
    worker.reports.returned(functools.partial(train_nothing).func)
    assert worker.said == [(3, True)]
    assert worker.sent[0].place == f"test_script_warnings.py:{train_nothing.__code__.co_firstlineno} (train_nothing)"
    worker = Standing(monkeypatch)
    worker.reports.returned(train_nothing)
    assert worker.said == [], "it has trained nothing, as hvd.init does"


def test_rank_0_alone_reports_that_there_is_no_boundary_but_all_know_what_they_lose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Standing(monkeypatch, rank=1)
    worker.train(37)
    assert worker.said == []
    assert worker.reports.uncounted_steps == 37
    worker.round_id = RoundId(1, 3)  # which has been assigned, and is not synced yet
    assert worker.reports.uncounted_steps == 0
    worker.begin(RoundId(1, 3))
    worker.train(2)
    assert worker.reports.uncounted_steps == 2, "by now it is known"


def test_each_kind_of_missing_boundary_is_said_once() -> None:
    warnings = ScriptWarnings(lambda _round_id, _boundaries: 0)
    early, late = NoBoundary(10, "train.py:31 (train)"), NoBoundary(90, "train.py:12 (train)", returned=True)
    reports = [events.ScriptWarned(1, ROUND, 0, warning) for warning in (early, early, late)]
    assert [warnings.cause(report, FIRST) for report in reports] == [
        Cause(CauseKind.NO_BOUNDARY, FIRST, detail=early),
        None,
        Cause(CauseKind.NO_BOUNDARY, FIRST, detail=late),
    ]


def test_steps_that_are_not_counted_are_not_shown_as_none() -> None:
    story = Story()
    story.begun()
    story.says(1, 1, 0, 103.0)
    story.take(events.ScriptWarned(1, RoundId(1, 1), 0, NoBoundary(10, "train.py:31 (train)")))
    story.event_history.warnings.add(Cause(CauseKind.NO_BOUNDARY, FIRST, detail=NoBoundary(10, "")), story.now)
    progress = story.event_history.progress_now()
    assert progress is not None
    assert progress_text(progress) == "steps are not counted, because the script passes no boundary"
    assert story.event_history.tracker.step_after(RoundId(1, 1), 0) == 0
    assert counts(status_pb2.Run(progress=progress))[-1] == "number of lost steps not known"
    assert counts(status_pb2.Run(progress=progress, steps_lost=37))[-1] == "37 steps lost"
    story.steps(1, 1)
    progress = story.event_history.progress_now()
    assert progress is not None
    assert progress_text(progress).startswith("step 0")
    assert story.event_history.tracker.step_after(RoundId(1, 1), 7) == 8
    assert story.event_history.warnings.messages() == [], "it is over"


# ---- samples --------------------------------------------------------------------------------------------------------


def drawn(worker_id: int, digest: bytes, round_id: RoundId = ROUND, place: str = "train.py:20 (train)") -> events.Event:
    return events.ScriptWarned(worker_id, round_id, 1, events.BatchesDrawn("RandomSampler", place, digest))


def test_two_workers_of_a_round_that_draw_the_same_are_named_once() -> None:
    warnings = ScriptWarnings(lambda _round_id, _boundaries: 0)

    def cause(event: Any, worker: WorkerName) -> Cause | None:
        return warnings.cause(event, worker)

    assert cause(drawn(1, b"1"), FIRST) is None
    assert cause(drawn(1, b"1"), FIRST) is None, "from another loader perhaps"
    detail = SameSamples("RandomSampler", "train.py:20 (train)", FIRST)
    assert cause(drawn(2, b"1"), SECOND) == Cause(CauseKind.SAME_SAMPLES, SECOND, detail=detail)
    assert cause(drawn(2, b"1"), SECOND) is None
    assert cause(drawn(1, b"2", place="train.py:30 (train)"), FIRST) is None
    assert cause(drawn(2, b"2", place="train.py:30 (train)"), SECOND) is not None, "another loader"


def test_what_differs_or_was_drawn_in_another_round_is_no_mistake() -> None:
    warnings = ScriptWarnings(lambda _round_id, _boundaries: 0)
    shares: list[Any] = [drawn(1, b"1"), drawn(2, b"2"), drawn(3, b"2", RoundId(1, 3))]
    assert [warnings.cause(event, SECOND) for event in shares] == [None] * 3
    for number in range(MAX_DRAWN):
        event: Any = drawn(1, b"%d" % number, RoundId(1, 4))
        warnings.cause(event, FIRST)
    late: Any = drawn(2, b"5", RoundId(1, 4))
    assert warnings.cause(late, SECOND) is None, "a worker could fill the driver's memory"


def test_batches_go_through_the_journal() -> None:
    event = drawn(2, b"\x00\xff")
    assert event_from_bytes(event_to_bytes(event)) == event


def test_what_was_said_is_not_said_again_by_the_next_driver() -> None:
    reports: list[Any] = [
        not_finite(2, "loss"),
        events.ScriptWarned(1, ROUND, 0, NoBoundary(10, "train.py:31 (train)")),
        drawn(1, b"\xff"),
    ]
    before, after = (ScriptWarnings(lambda _round_id, _boundaries: 1) for _ in range(2))
    for report in reports:
        before.cause(report, FIRST)
    codec = state_codec(strict=True)
    codec.load(after, codec.save(warnings=before), "warnings")
    assert [after.cause(report, FIRST) for report in reports] == [None] * 3
    same: Any = drawn(2, b"\xff")
    assert after.cause(same, SECOND) is not None, "it still knows what the first one has drawn"
