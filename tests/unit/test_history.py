"""A run's events, folded into what a page draws."""

from __future__ import annotations

import math

import pytest

from edriver.runview import interruptions, lanes, rounds
from edriver.runview.history import MAX_LOG_LINES, History
from edriver.runview.lanes import SlotState
from edriver.text.time_spent import TIME_KINDS
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp
from tests.unit.history_story import (
    FAILURE,
    GONE,
    PHASES,
    RESIZE,
    STALL,
    START,
    STOPPING,
    TRAINING,
    UNPROVEN,
    WAITING,
    Page,
    Story,
    phases_of,
    spent_of,
)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        pytest.param(status_pb2.Run(replica_size=2), "in replicas of 2", id="size"),
        pytest.param(status_pb2.Run(replica_size=1, replicas_are_hosts=True), "in a replica on each host", id="hosts"),
        pytest.param(status_pb2.Run(replica_size=1), "", id="none"),
        pytest.param(status_pb2.Run(), "", id="earlier-release"),
    ],
)
def test_the_head_names_replicas(run: status_pb2.Run, text: str) -> None:
    history = History()
    history.look(run, 0)
    assert history.since(0)["head"]["replicas"] == text


def test_a_kill() -> None:
    story = Story()
    story.killed()
    assert [(part.name, part.kind, part.size, part.ended) for part in story.history.rounds.all] == [
        ("1.1", "start", 2, 120.0),
        ("1.2", "failure", 1, 130.0),
        ("1.3", "resize", 2, None),
    ]
    assert story.history.rounds.all[1].phases == list(PHASES.values())
    assert story.steps(0) == [
        (100.0, SlotState.BOOTING, 1),
        (109.0, SlotState.WAITING, 1),
        (110.0, SlotState.TRAINING, 1),
        (120.5, SlotState.WAITING, 1),
        (121.0, SlotState.TRAINING, 1),
    ]
    assert story.steps(1) == [
        (100.0, SlotState.BOOTING, 2),
        (109.0, SlotState.WAITING, 2),
        (110.0, SlotState.TRAINING, 2),
        (120.0, SlotState.LOST, 2),
        (122.5, SlotState.BOOTING, 3),
        (129.0, SlotState.WAITING, 3),
        (130.0, SlotState.TRAINING, 3),
    ]
    assert [line.text for line in story.history.first_losses] == [
        "round 1.1 ended: worker 2 has ended",
        "worker 2 (rank 1, a:1) was killed by SIGKILL",
    ]
    assert [line.kind for line in story.history.log] == ["remark", "round", "loss", "round", "loss", "round"]
    assert story.history.view.size == 2


def test_a_strangers_connection_is_no_loss() -> None:
    story = Story()
    story.remark(100.0, "waiting")
    story.assigned(110.0, 1, START, {1: 0, 2: 1})
    story.reported.abort_kind = UNPROVEN
    story.ended(120.0, "round 1.1 ended: worker 2 (rank 1, a:1): connected from 127.0.0.1:4711")
    story.assigned(121.0, 2, UNPROVEN, {1: 0, 2: 1})
    assert story.history.first_losses == []
    assert [line.kind for line in story.history.log] == ["remark", "round", "round", "round"]
    head = story.history.since(0)["head"]
    assert (head["rounds"], head["failures"], head["unproven"]) == (2, 0, 1)


def test_before_the_first_step_there_is_no_goodput() -> None:
    story = Story()
    story.remark(100.0, "waiting")
    assert story.history.view.goodput is None
    head = story.history.since(0)["head"]
    assert (head["goodput"], head["time_spent"]) == (None, None)
    story.sample(105.0, 0, spent_of(None, 105.0, booting=5.0))
    assert story.history.view.goodput is None
    head = story.history.since(0)["head"]
    assert (head["goodput"], head["time_spent"]["booting"], head["time_spent"]["training"]) == (None, 5.0, 0.0)


def test_goodput_is_what_the_driver_has_last_told() -> None:
    story = Story()
    story.remark(100.0, "waiting")
    story.sample(120.0, 20, spent_of(0.25, 120.0, booting=15.0, training=5.0))
    assert story.history.view.goodput == 0.25
    story.sample(121.0, 20)  # as an older driver writes it
    assert story.history.view.goodput == 0.25
    story.sample(130.0, 40, spent_of(0.5, 130.0, booting=15.0, training=15.0))
    assert story.history.view.goodput == 0.5
    told = spent_of(0.75, 160.0, booting=15.0, training=45.0)
    ended = status_pb2.RunEnded(end=status_pb2.RUN_END_DONE, time_spent=told)
    story.event(160.0, "all workers are done", run_ended=ended)
    head = story.history.since(0)["head"]
    assert (head["goodput"], head["time_spent"]["training"]) == (0.75, 45.0)
    assert head["time_spent"].keys() == set(TIME_KINDS) - {"unknown"}
    assert head["steps_lost"] == 0


def test_in_restart_mode_neither_goodput_nor_lost_steps_are_known() -> None:
    story = Story()
    story.remark(100.0, "waiting")
    spent = spent_of(None, 160.0, booting=15.0, unknown=45.0)
    story.event(160.0, "done", run_ended=status_pb2.RunEnded(end=status_pb2.RUN_END_DONE, time_spent=spent))
    head = story.history.since(0)["head"]
    assert (head["goodput"], head["steps_lost"], head["time_spent"]["unknown"]) == (None, None, 45.0)


def test_steps_and_the_time_spent_on_them_are_of_one_moment() -> None:
    """A look between two samples knows of later steps; with the time of those, the steps shown would be too few."""
    story = Story()
    story.remark(100.0, "waiting")
    booting = spent_of(None, 105.0, booting=5.0)
    story.history.look(status_pb2.Run(time_spent=booting), story.seq)
    assert story.history.view.time_spent == booting
    spent = spent_of(0.25, 120.0, booting=15.0, training=5.0)
    story.sample(120.0, 20, spent)
    later = spent_of(0.3, 121.0, booting=15.0, training=6.0)
    story.history.look(status_pb2.Run(progress=status_pb2.Progress(steps=24), time_spent=later), story.seq)
    reported = story.history.since(0)
    assert (reported["curve"]["progress"]["steps"], story.history.view.time_spent) == (20, spent)


def test_the_last_progress_is_in_the_curve_and_in_the_counts() -> None:
    story = Story()
    story.killed()
    story.sample(139.5, 100, loss=1.0)
    cause = cause_pb2.Cause(text="worker 3 was killed by SIGKILL")
    ended = status_pb2.RunEnded(
        end=status_pb2.RUN_END_FAILED,
        progress=status_pb2.Progress(steps=107, reported={"loss": 0.5}),
        failures=2,
        preemptions=1,
        resizes=1,
        worker_failures=[status_pb2.WorkerFailure(cause=cause, traceback="Traceback\n", tail="the last line\n")],
    )
    story.event(140.0, "worker 3 was killed by SIGKILL", run_ended=ended)
    reported = story.history.since(0)
    assert reported["curve"]["points"][-1] == (140.0, 107, 0.0, {"loss": 0.5}, None, 0.0)
    head = reported["head"]
    assert [head[kind] for kind in ("failures", "preemptions", "resizes", "unproven")] == [2, 1, 1, 0]
    assert head["failure"] == {
        "cause": "worker 3 was killed by SIGKILL",
        "time": None,
        "text": "Traceback\nits last lines of output:\nthe last line",
        "over": False,
    }


def test_what_has_impaired_the_run_the_latest_first() -> None:
    story = Story()
    run = status_pb2.Run(run_id="abcd")
    for text, time, count in (("the clock was set", 110.0, 1), ("rank 1 reported loss = nan", 120.0, 3)):
        run.warnings.add(cause=cause_pb2.Cause(text=text), last_time=timestamp(time), count=count)
    story.history.look(run, 1)
    head = story.history.since(0)["head"]
    assert head["warnings"] == [["rank 1 reported loss = nan", 120.0, 3], ["the clock was set", 110.0, 1]]


def test_what_the_script_was_warned_of_is_known_from_its_events_alone() -> None:
    story = Story()
    for time, kind in ((110.0, cause_pb2.CAUSE_KIND_NO_BOUNDARY), (120.0, cause_pb2.CAUSE_KIND_NOT_FINITE)):
        story.event(time, f"at {time}", remark=status_pb2.Remark(), cause=cause_pb2.Cause(kind=kind))
    story.remark(130.0, "waiting")
    assert story.history.since(0)["head"]["warnings"] == [("at 120.0", 120.0, 1), ("at 110.0", 110.0, 1)]


def test_interruptions_and_recoveries() -> None:
    story = Story()
    story.killed()
    boot, failure = story.history.interruptions.all
    assert (boot.number, boot.kind, boot.start, boot.seconds, boot.round, boot.size) == (
        1,
        "boot",
        100.0,
        11.0,
        "1.1",
        2,
    )
    assert failure.plain() == {
        "number": 2,
        "kind": "failure",
        "cause": "worker 2 (rank 1, a:1) was killed by SIGKILL",  # which became known when it was over
        "start": 119.5,
        "seconds": 1.625,
        "round": "1.2",
        "size": 1,
        "phases": list(PHASES.values()),
        "lost": 20,
        "failed": 1,
    }
    story.interrupted(140.0, 30.0, STALL)
    assert story.history.interruptions.all[-1].phases is None
    story.reported = status_pb2.Round()
    story.interrupted(180.0, 4.375)  # the run ends in it
    assert (story.history.interruptions.all[-1].round, story.history.interruptions.count) == ("", 4)
    recoveries = story.history.since(0)["head"]["recoveries"]
    assert recoveries == {"count": 1, "median": 1.625, "longest": 1.625}


def test_the_driver_knows_recoveries_that_were_before_its_first_event_here() -> None:
    story = Story()
    story.killed()
    told = status_pb2.RecoverySummary(count=3, median=duration(2.0), longest=duration(9.0))
    story.history.look(status_pb2.Run(recoveries=told), story.seq)
    assert story.history.view.recoveries == told
    for start in (150.0, 160.0, 170.0):
        story.interrupted(start, 1.0)
    assert story.history.view.recoveries.count == 4
    ended = status_pb2.RunEnded(recoveries=status_pb2.RecoverySummary(count=6, median=duration(1.5)))
    story.event(180.0, run_ended=ended)
    assert story.history.view.recoveries == ended.recoveries


def test_only_new_interruptions_are_sent() -> None:
    story, page = Story(), Page()
    story.killed()
    page.take(story.history)
    assert [each["number"] for each in page.interruptions] == [1, 2]
    story.remark(132.0, "host b is not used")
    assert "interruptions" not in story.history.since(page.version)
    page.take(story.history)
    for start in (140.0, 150.0):
        story.interrupted(start, 3.0, STALL)
    parts = story.history.since(page.version)["interruptions"]
    assert (parts["whole"], [each["number"] for each in parts["interruptions"]]) == (False, [3, 4])
    page.take(story.history)
    assert [each["start"] for each in page.interruptions] == [100.0, 119.5, 140.0, 150.0]


def test_how_a_worker_ended_reaches_a_page_that_has_the_interruption_already() -> None:
    story, page = Story(), Page()
    story.assigned(110.0, 1, START, {1: 0, 2: 1})
    ended = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_ENDED, worker_id=2, text="worker 2 has ended")
    story.interrupted(119.5, 1.625, cause=ended)
    story.assigned(121.0, 2, FAILURE, {1: 0}, cause=ended)
    page.take(story.history)
    assert [each["cause"] for each in (*page.interruptions, page.rounds["1.2"])] == ["worker 2 has ended"] * 2
    story.lost(122.5, 3, 2, "worker 3 exited with code 1")
    story.lost(122.5, 2, 1, "worker 2 was killed by SIGKILL")
    story.lost(122.6, 2, 1, "worker 2 is told of again")
    page.take(story.history)
    assert [each["cause"] for each in (*page.interruptions, page.rounds["1.2"])] == [
        "worker 2 was killed by SIGKILL"
    ] * 2


def test_the_longest_interruptions_of_a_long_run_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "MAX_INTERRUPTIONS", 100)
    story, page = Story(), Page()
    story.remark(0.0, "waiting")
    story.assigned(1.0, 1, START, {1: 0})
    for n in range(1, 1001):
        story.interrupted(20.0 * n, 1000.0 if n % 100 == 0 else 1.0 + n % 7)
        if n % 7 == 0:
            page.take(story.history)
        assert len(story.history.interruptions.all) <= 100
    page.take(story.history)
    whole = Page()
    whole.take(story.history)
    assert page.interruptions == whole.interruptions
    numbers = [each["number"] for each in whole.interruptions]
    assert numbers == sorted(set(numbers))
    assert numbers[-25:] == list(range(976, 1001))
    assert {each["number"] for each in whole.interruptions if each["seconds"] == 1000.0} == set(range(100, 1001, 100))
    assert story.history.interruptions.count == 1000
    assert whole.head["recoveries"] == {"count": 1000, "median": 4.0, "longest": 1000.0}


@pytest.mark.parametrize("nonsense", [-5.0, 3e11])
def test_lengths_that_clocks_make_invalid_reach_the_page_as_numbers(nonsense: float) -> None:
    story, page = Story(), Page()
    story.assigned(110.0, 1, START, {1: 0})
    story.under_way(112.0, rendezvous=nonsense, sync=nonsense)
    over = status_pb2.Interruption(duration=duration(nonsense), phases=phases_of(wait=nonsense))
    story.event(112.0, interruption=over)
    page.take(story.history)
    (interruption,) = page.interruptions
    (shown,) = page.rounds.values()
    lengths = [interruption["seconds"], *interruption["phases"], *shown["phases"]]
    assert [each for each in lengths if not each >= 0.0] == []


def test_an_orderly_resize_loses_no_worker() -> None:
    story = Story()
    story.killed()
    story.ended(140.0)
    story.worker(140.1, 3, 1, WAITING)
    story.assigned(140.2, 4, RESIZE, {1: 0})
    story.worker(140.2, 3, 1, STOPPING)
    story.worker(141.0, 3, 1, GONE)
    assert [state for _, state, _ in story.steps(1)[-3:]] == [SlotState.WAITING, SlotState.LEAVING, SlotState.EMPTY]


def test_one_that_leaves_and_was_the_last_to_stop_is_not_lost() -> None:
    story = Story()
    story.killed()
    story.ended(140.0)
    story.worker(140.2, 3, 1, STOPPING)  # its own report completes the round, so no WAITING event precedes this one
    story.assigned(140.2, 4, RESIZE, {1: 0})
    story.worker(140.2, 3, 1, STOPPING)
    story.worker(141.0, 3, 1, GONE)
    assert [state for _, state, _ in story.steps(1)[-3:]] == [SlotState.TRAINING, SlotState.LEAVING, SlotState.EMPTY]


def test_one_that_dies_between_two_rounds_is_lost() -> None:
    story = Story()
    story.killed()
    story.ended(140.0)
    story.worker(140.2, 3, 1, STOPPING)
    story.assigned(140.3, 4, FAILURE, {1: 0})
    story.lost(141.0, 3, 1, "worker 3 was killed by SIGKILL")
    assert story.steps(1)[-1] == (141.0, SlotState.LOST, 3)


def test_the_end() -> None:
    story = Story()
    story.killed()
    story.ended(140.0)
    story.event(140.0, "all workers are done", run_ended=status_pb2.RunEnded(end=status_pb2.RUN_END_DONE))
    reported = story.history.since(0)
    assert reported["head"]["ended"] == {"time": 140.0, "end": "done"}
    assert (reported["head"]["size"], reported["head"]["doing"]) == (0, "all workers are done")
    assert story.steps(0)[-1] == (140.0, SlotState.EMPTY, 0)


def test_a_page_that_is_sent_changes_has_all_there_is() -> None:
    story, page = Story(), Page()
    feed = story.history.fold

    def feed_and_send(event: status_pb2.Event) -> None:
        feed(event)
        page.take(story.history)

    story.history.fold = feed_and_send  # type: ignore[method-assign]
    story.killed()
    story.host(135.0, "b", 1, "is quarantined")
    story.host(136.0, "b", 0)
    story.sample(137.0, 100, loss=math.nan)
    page.take(story.history)
    whole = Page()
    whole.take(story.history)
    assert vars(page) == vars(whole)
    assert page.hosts.keys() == {"a"}
    assert page.points[-1][3] == {"loss": None}
    assert page.take(story.history) == 0


def test_samples_whose_steps_a_failure_undid_are_marked_in_each_call_of_run() -> None:
    story, page = Story(), Page()
    story.killed()
    for time, steps in ((140.0, 60), (150.0, 70), (160.0, 75)):
        story.sample(time, steps)
    page.take(story.history)
    assert page.undone == []
    story.sample(170.0, 65)
    page.take(story.history)
    story.assigned(180.0, 4, START, {1: 0, 3: 1})
    for time, steps in ((190.0, 5), (200.0, 3), (210.0, 9)):
        story.sample(time, steps)
    page.take(story.history)
    assert [point[1] for first, end in page.undone for point in page.points[first:end]] == [70, 75, 5]


def test_only_what_has_changed_is_sent() -> None:
    story, page = Story(), Page()
    story.killed()
    page.take(story.history)
    story.remark(132.0, "host b is not used")
    reported = story.history.since(page.version)
    assert reported.keys() == {"version", "head", "log"}
    assert reported["log"] == [[story.seq, 132.0, "host b is not used", "remark"]]
    page.take(story.history)
    story.worker(133.0, 1, 0, WAITING)
    assert story.history.since(page.version)["lanes"] == {
        "whole": False,
        "lanes": [{"host": "a", "slot": 0, "from": 5, "steps": [(133.0, 2, 1)]}],
    }


def test_an_event_that_comes_twice_is_passed_over() -> None:
    story = Story()
    story.killed()
    before = story.history.since(0)
    story.history.fold(status_pb2.Event(seq=3, time=timestamp(1.0), text="again", remark=status_pb2.Remark()))
    assert story.history.since(0) == before


def test_a_run_joined_late() -> None:
    story = Story()
    story.killed()
    known = story.history.view
    resting = cause_pb2.Cause(text="slot 1 rests")
    run = status_pb2.Run(
        run_id="abcd",
        start_time=timestamp(100.0),
        now=timestamp(135.0),
        activity=cause_pb2.Cause(text="round 1.3"),
        failures=7,
        time_spent=spent_of(0.5, 134.0, booting=11.0, training=17.0, recovering=6.0),
        recoveries=status_pb2.RecoverySummary(count=1, median=duration(6.0), longest=duration(6.0)),
        hosts=[status_pb2.HostStatus(name="a", slots=2, connected=True, obstacles=[resting])],
        workers=[
            status_pb2.WorkerStatus(worker_id=1, host="a", slot=0, state=TRAINING, start_time=timestamp(100.0)),
            status_pb2.WorkerStatus(worker_id=3, host="a", slot=1, state=TRAINING, start_time=timestamp(122.5)),
        ],
    )
    late = History()
    members = [status_pb2.Member(worker_id=n, host="a", slot=n - 1) for n in (1, 2)]
    first = status_pb2.Round(
        round_id=rounds_pb2.RoundId(incarnation=1, n=1),
        members=members,
        assign_time=timestamp(110.0),
        first_step_time=timestamp(112.0),
        end_time=timestamp(120.0),
        phases=status_pb2.RecoveryPhases(rendezvous=duration(0.5), sync=duration(0.5)),
    )
    late.join(run, [first, story.reported], story.seq)
    late.fold(status_pb2.Event(seq=story.seq, time=timestamp(1.0), text="is in it", remark=status_pb2.Remark()))
    assert late.log == []
    assert late.view.size == known.size == 2
    assert (late.view.goodput, late.view.time_spent) == (0.5, run.time_spent)
    assert late.interruptions.all == []
    assert late.view.recoveries.count == 1
    assert [state for _, state, _ in late.lanes.of_slots["a", 1].steps] == [SlotState.TRAINING, SlotState.TRAINING]
    assert late.since(0)["head"]["failures"] == 7
    assert list(late.hosts["a"].obstacles) == [resting]
    late.join(run, [first, story.reported], story.seq)
    assert len(late.rounds.all) == 2
    assert len(late.lanes.of_slots["a", 1].steps) == 2


def test_a_state_that_was_read_after_the_end_does_not_say_what_the_run_did_before() -> None:
    story = Story()
    ended = status_pb2.RunEnded(end=status_pb2.RUN_END_STOPPED)
    story.event(140.0, "requested by an operator", run_ended=ended)
    story.history.look(status_pb2.Run(activity=cause_pb2.Cause(text="waiting: no worker is ready yet")), story.seq)
    assert story.history.view.doing == "requested by an operator"


def test_a_look_that_is_older_than_an_event_is_passed_over() -> None:
    story = Story()
    story.killed()
    story.history.look(status_pb2.Run(activity=cause_pb2.Cause(text="long ago")), story.seq - 1)
    assert story.history.view.doing == "round 1.3"
    story.history.look(status_pb2.Run(activity=cause_pb2.Cause(text="now")), story.seq)
    assert story.history.view.doing == "now"
    assert story.history.hosts == {}


def test_a_month_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 100)
    monkeypatch.setattr(lanes, "MAX_STATE_CHANGES", 400)
    monkeypatch.setattr(interruptions, "MAX_INTERRUPTIONS", 100)
    story, page = Story(), Page()
    time, lost = 0.0, 0
    for n in range(1, 1001):
        time += 10.0
        story.assigned(time, n, FAILURE, {n * 4 + slot: slot for slot in range(4)}, lost=1)
        story.under_way(time + 1.0, sync=0.5, first_step=0.5)
        story.interrupted(time - 1.0, 1.5, phases=phases_of(sync=0.5, first_step=0.5))
        story.sample(time + 5, n)
        story.worker(time + 9, n * 4, 0, STOPPING)
        story.ended(time + 9, f"round {n} ended")
        lost += 1
        if n % 7 == 0:
            page.take(story.history)
    page.take(story.history)
    whole = Page()
    length = whole.take(story.history)
    assert page.lanes == whole.lanes
    assert page.rounds == whole.rounds
    assert page.interruptions == whole.interruptions
    assert page.points == whole.points
    assert len(whole.rounds) <= 100
    assert len(whole.interruptions) <= 100
    assert max(len(steps) for steps in whole.lanes.values()) <= 100
    assert len(whole.log) <= MAX_LOG_LINES
    assert length < 400_000
    assert whole.head["steps_lost"] == lost
    for steps in whole.lanes.values():
        assert [step[0] for step in steps] == sorted(step[0] for step in steps)


def test_slots_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_LANES", 50)
    story, page = Story(), Page()
    for number in range(1, 301):
        story.worker(float(number), number, number, TRAINING)
        if number > 10:
            story.worker(float(number), number, number, GONE)
        page.take(story.history)
    whole = Page()
    whole.take(story.history)
    assert page.lanes == whole.lanes
    assert len(whole.lanes) <= 50
    assert {("a", number) for number in range(1, 11)} <= whole.lanes.keys()
