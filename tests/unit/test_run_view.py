"""How a run stands after its events: the one fold, of which all who show a run read."""

from __future__ import annotations

import dataclasses
import pickle
from collections import deque
from typing import Any

import pytest
from google.protobuf.message import Message

from edriver.model.ids import RoundId
from edriver.runview.history import History
from edriver.runview.progress_rows import progress_rows
from edriver.runview.recovery_times import MAX_RECOVERIES
from edriver.runview.run_view import MAX_LOSS_TIMES, RunView
from edriver.v1 import cause_pb2, pace_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp
from tests.unit.history_story import (
    BOOT,
    FAILURE,
    INTERRUPTION_FAILURE,
    PHASES,
    RESIZE,
    START,
    UNPROVEN,
    Story,
    phases_of,
    spent_of,
)
from tests.unit.metrics_story import recovered


def folded(events: list[status_pb2.Event]) -> RunView:
    view = RunView()
    for event in events:
        view.fold(event)
    return view


def test_what_the_driver_shows_is_what_its_events_come_to() -> None:
    event_history = recovered().event_history
    assert event_history.view.count("failures") == 1
    assert folded(event_history.since(0, 1000)) == event_history.view


def remade(value: Any) -> Any:
    """The same, made anew from its fields, as by a journal, which holds numbers, texts, collections and messages."""
    if value is None or isinstance(value, bool | int | float | str | Message):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: remade(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
        return type(value)(**fields)
    if isinstance(value, dict):
        return {key: remade(each) for key, each in value.items()}
    assert isinstance(value, RoundId | tuple | list | deque), value
    items = [remade(each) for each in value]
    return RoundId(*items) if isinstance(value, RoundId) else type(value)(items)


def test_its_state_is_data_that_a_journal_holds() -> None:
    story = Story()
    story.killed()
    again = remade(story.history.view)
    assert again == story.history.view
    for n in range(MAX_RECOVERIES + 1):
        over = status_pb2.Interruption(kind=INTERRUPTION_FAILURE, round_id=story.reported.round_id)
        again.fold(status_pb2.Event(seq=story.seq + n + 1, interruption=over))
    assert len(again._recovery_times.latest) == MAX_RECOVERIES


def test_it_does_not_grow_with_a_run() -> None:
    story = Story()
    sizes = []
    for n in range(1, 3 * MAX_RECOVERIES):
        story.reported.round_id.CopyFrom(rounds_pb2.RoundId(incarnation=1, n=n))
        story.interrupted(float(n), 0.5, phases=phases_of(**PHASES))
        if n % MAX_RECOVERIES == 0:
            sizes.append(len(pickle.dumps(story.history.view)))
    assert sizes[1] <= sizes[0] + 100
    assert story.history.view.recoveries.count == 3 * MAX_RECOVERIES - 1


def test_rounds_are_counted_by_what_ended_them_before_the_next_one_is_there() -> None:
    story = Story()
    view = story.history.view
    story.assigned(110.0, 1, START, {1: 0, 2: 1})
    story.reported.abort_kind = FAILURE
    story.ended(120.0, "round 1.1 ended: worker 2 has ended")  # and its driver, say
    assert (view.count("failures"), view.count("resizes")) == (1, 0)
    story.assigned(121.0, 2, FAILURE, {1: 0})
    assert view.count("failures") == 1
    story.ended(130.0)
    story.assigned(130.0, 3, RESIZE, {1: 0, 3: 1})
    assert (view.count("failures"), view.count("resizes"), view.rounds) == (1, 1, 3)


def test_a_round_that_is_aborted_after_it_was_stopped_counts_as_both() -> None:
    story = Story()
    view = story.history.view
    story.assigned(110.0, 1, START, {1: 0, 2: 1})
    story.reported.end_kind = RESIZE
    story.ended(120.0)
    assert (view.count("failures"), view.count("resizes")) == (0, 1)
    story.reported.end_kind = story.reported.abort_kind = FAILURE
    story.ended(121.0, "round 1.1 ended: worker 2 has ended")
    story.assigned(122.0, 2, FAILURE, {1: 0})
    assert (view.count("failures"), view.count("resizes"), view.rounds) == (1, 1, 2)
    assert story.history.log[1].kind == "loss"


def test_a_warning_is_not_what_a_run_does() -> None:
    story = Story()
    story.assigned(110.0, 1, START, {1: 0})
    warning = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_DRIVER_PAUSED)
    story.event(111.0, "the driver stood still for 3.0 s", cause=warning, remark=status_pb2.Remark())
    assert story.history.view.doing == "round 1.1"
    assert story.history.log[-1].text == "the driver stood still for 3.0 s"
    awaited = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_WORKERS_AWAITED)
    story.event(112.0, "waiting: no worker is ready yet", cause=awaited, remark=status_pb2.Remark())
    assert story.history.view.doing == "waiting: no worker is ready yet"


def test_a_run_joined_late_has_the_counts_of_its_driver_and_who_holds_it_up() -> None:
    story = Story()
    story.killed()
    hold_up = pace_pb2.HoldUp(start_time=timestamp(133.0), waiting=1)
    run = status_pb2.Run(now=timestamp(135.0), rounds=1003, steps_lost=77, unproven=2, hold_up=hold_up)
    ended = status_pb2.Round(
        round_id=rounds_pb2.RoundId(incarnation=1, n=2), assign_time=timestamp(121.0), end_time=timestamp(130.0)
    )
    late = History()
    late.join(run, [ended, story.reported], story.seq)
    head = late.since(0)["head"]
    assert (head["rounds"], head["steps_lost"], head["unproven"]) == (1003, 77, 2)
    assert head["pace"]["hold_up"] == {"since": 133.0, "text": "all 1 are waiting for one another in collectives"}


@pytest.mark.parametrize("kind", [FAILURE, UNPROVEN])
def test_lengths_are_counted_once_for_each_round(kind: status_pb2.RoundKind.ValueType) -> None:
    story = Story()
    story.assigned(110.0, 1, START, {1: 0, 2: 1})
    story.ended(120.0, "round 1.1 ended")
    story.assigned(121.0, 2, kind, {1: 0})
    story.under_way(122.0, **PHASES)
    story.ended(130.0)
    name = "failure" if kind == FAILURE else "unproven"
    lengths = story.history.view.phases[name]
    assert {phase: each.sum for phase, each in lengths.items()} == PHASES
    assert [sum(each.counts) for each in lengths.values()] == [1] * len(PHASES)
    assert sum(sum(each.counts) for each in story.history.view.phases["start"].values()) == 0


def test_seconds_of_rows_begin_with_the_run_and_not_with_its_first_event() -> None:
    over = status_pb2.Interruption(kind=BOOT, start_time=timestamp(97.0), duration=duration(14.0))
    progress = status_pb2.Progress(steps=5, time_spent=spent_of(0.5, 115.0, booting=14.0))
    rows = progress_rows(
        [
            status_pb2.Event(seq=1, time=timestamp(100.0), text="waiting", remark=status_pb2.Remark()),
            status_pb2.ProgressSample(time=timestamp(110.0), progress=progress),
            status_pb2.Event(seq=2, time=timestamp(111.0), interruption=over),
            status_pb2.ProgressSample(time=timestamp(115.0), progress=progress),
        ]
    )
    assert [row.seconds for row in rows] == [13.0, 18.0]


def test_failures_are_past_once_it_trains_again_or_has_ended_well() -> None:
    story = Story()
    view = story.history.view
    story.assigned(110.0, 1, START, {1: 0, 2: 1})
    story.under_way(112.0)
    assert view.healthy
    story.ended(120.0, "round 1.1 ended: worker 2 has ended")
    assert not view.healthy
    story.assigned(121.0, 2, FAILURE, {1: 0})
    assert not view.healthy, "it may fail before its first step"
    story.under_way(122.0)
    assert view.healthy
    story.ended(130.0, "round 1.2 ended: requested by ada@login1")  # at a stop, a round ends before the run does
    failure = status_pb2.WorkerFailure(cause=cause_pb2.Cause(text="killed"))
    for end, failures, well in (
        (status_pb2.RUN_END_FAILED, [], False),
        (status_pb2.RUN_END_LOST, [], False),
        (status_pb2.RUN_END_DONE, [], True),
        (status_pb2.RUN_END_STOPPED, [], True),
        (status_pb2.RUN_END_STOPPED, [failure], False),
    ):
        ended = status_pb2.Event(run_ended=status_pb2.RunEnded(end=end, worker_failures=failures))
        assert dataclasses.replace(view, ended=ended).healthy == well, (end, failures)
    stopped = status_pb2.Event(run_ended=status_pb2.RunEnded(end=status_pb2.RUN_END_STOPPED))
    assert not dataclasses.replace(view, ended=stopped, stepped=False).healthy, "it was stopped before a first step"


def test_when_a_worker_was_lost_is_known_of_the_latest() -> None:
    def loss(seq: int, worker_id: int) -> status_pb2.Event:
        worker = status_pb2.WorkerStatus(worker_id=worker_id, host="a")
        return status_pb2.Event(
            seq=seq, time=timestamp(100.0 + seq), worker=worker, cause=cause_pb2.Cause(text="killed")
        )

    view = folded([loss(1, 7), loss(2, 7), *(loss(1 + n, n) for n in range(8, 7 + MAX_LOSS_TIMES))])
    assert view.loss_times[7] == 101.0, "what becomes known later is no other loss"
    view.fold(loss(500, 1000))
    assert len(view.loss_times) == MAX_LOSS_TIMES
    assert 7 not in view.loss_times
