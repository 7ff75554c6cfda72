"""A run's events, folded into what a page draws."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from edriver.common.wire import duration, timestamp
from edriver.history import lanes, rounds
from edriver.history.history import MAX_LOG_LINES, History
from edriver.history.lanes import SlotState
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2

BOOTING, WAITING, TRAINING, STOPPING, GONE = (
    status_pb2.WORKER_STATE_BOOTING,
    status_pb2.WORKER_STATE_WAITING,
    status_pb2.WORKER_STATE_TRAINING,
    status_pb2.WORKER_STATE_STOPPING,
    status_pb2.WORKER_STATE_GONE,
)
START, FAILURE, RESIZE, UNPROVEN = (
    status_pb2.ROUND_KIND_START,
    status_pb2.ROUND_KIND_FAILURE,
    status_pb2.ROUND_KIND_RESIZE,
    status_pb2.ROUND_KIND_UNPROVEN,
)
PHASES = {"detect": 0.25, "abort": 0.25, "rendezvous": 0.25, "sync": 0.5, "first_step": 0.25}


class Page:
    """A page: it has only the data that it was sent."""

    def __init__(self) -> None:
        self.version = 0
        self.lanes: dict[tuple[str, int], list[Any]] = {}
        self.rounds: dict[str, Any] = {}
        self.points: list[Any] = []
        self.hosts: dict[str, Any] = {}
        self.log: list[Any] = []
        self.head: dict[str, Any] = {}

    def take(self, history: History) -> int:
        """Returns the message's length."""
        reported = history.since(self.version)
        text = json.dumps(reported, allow_nan=False)
        if not reported:
            return 0
        self.version, self.head = reported["version"], reported["head"]
        for name in ("lanes", "rounds", "curve"):
            if reported.get(name, {}).get("whole"):
                setattr(self, {"curve": "points"}.get(name, name), [] if name == "curve" else {})
        for lane in reported.get("lanes", {}).get("lanes", []):
            steps = self.lanes.setdefault((lane["host"], lane["slot"]), [])
            steps[lane["from"] :] = lane["steps"]
        for each in reported.get("rounds", {}).get("rounds", []):
            self.rounds[each["id"]] = each
        self.points += reported.get("curve", {}).get("points", [])
        for host in reported.get("hosts", []):
            self.hosts[host["name"]] = host
            if not host["slots"] and "since" not in host:
                del self.hosts[host["name"]]
        self.log += reported.get("log", [])
        return len(text)


class Story:
    """A run that began at 100, of workers in slots of host a."""

    def __init__(self) -> None:
        self.history = History()
        self.seq = 0
        self.reported = status_pb2.Round()

    def event(self, time: float, text: str = "", **kind: Any) -> status_pb2.Event:
        self.seq += 1
        event = status_pb2.Event(seq=self.seq, time=timestamp(time), text=text, **kind)
        self.history.feed(event)
        return event

    def remark(self, time: float, text: str) -> None:
        self.event(time, text, remark=status_pb2.Remark())

    def worker(self, time: float, number: int, slot: int, state: Any) -> None:
        self.event(time, worker=status_pb2.WorkerStatus(worker_id=number, host="a", slot=slot, state=state))

    def lost(self, time: float, number: int, slot: int, text: str) -> None:
        gone = status_pb2.WorkerStatus(worker_id=number, host="a", slot=slot, state=GONE)
        self.event(time, text, worker=gone, cause=cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_KILLED))

    def host(self, time: float, name: str, slots: int, *obstacles: str) -> None:
        host = status_pb2.HostStatus(
            name=name,
            slots=slots,
            connected=slots > 0,
            obstacles=[cause_pb2.Cause(text=text) for text in obstacles],
            discover_time=timestamp(time),
        )
        self.event(time, host=host)

    def assigned(self, time: float, n: int, kind: Any, members: dict[int, int], lost: int = 0) -> None:
        """Members: worker_id to slot."""
        before = self.reported.end_time if self.reported.HasField("end_time") else None
        self.reported = status_pb2.Round(
            round_id=rounds_pb2.RoundId(incarnation=1, n=n),
            kind=kind,
            cause=cause_pb2.Cause(text=f"cause {n}"),
            members=[status_pb2.Member(worker_id=worker, host="a", slot=slot) for worker, slot in members.items()],
            assign_time=timestamp(time),
            previous_end_time=before,
            steps_lost=lost,
        )
        self.event(time, f"round 1.{n}", round=self.reported)

    def under_way(self, time: float, **phases: float) -> None:
        self.reported.first_step_time.CopyFrom(timestamp(time))
        spans = {name: duration(seconds) for name, seconds in phases.items()}
        self.reported.phases.CopyFrom(status_pb2.RecoveryPhases(**spans))
        self.event(time, round=self.reported)

    def ended(self, time: float, text: str = "") -> None:
        """With a text, by an abort."""
        self.reported.end_time.CopyFrom(timestamp(time))
        reported = status_pb2.Round()
        reported.CopyFrom(self.reported)
        reported.ClearField("members")
        cause = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_ENDED) if text else None
        self.event(time, text, round=reported, cause=cause)

    def sample(self, time: float, steps: int, rate: float = 10.0, **reported: float) -> None:
        self.history.sample(time, status_pb2.Progress(steps=steps, step_rate=rate, reported=reported))

    def killed(self) -> None:
        """Two workers, of which 2 is killed at 120; it is replaced by 3 at 130."""
        self.remark(100.0, "waiting: 0 of 2 workers are ready")
        self.host(100.0, "a", 2)
        for number in (1, 2):
            self.worker(100.0, number, number - 1, BOOTING)
        for number in (1, 2):
            self.worker(109.0, number, number - 1, WAITING)
        self.assigned(110.0, 1, START, {1: 0, 2: 1})
        self.under_way(112.0, rendezvous=0.5, sync=0.5, first_step=1.0)
        self.sample(115.0, 50, loss=1.5)
        self.worker(120.0, 2, 1, STOPPING)
        self.ended(120.0, "round 1.1 ended: worker 2 has ended")
        self.worker(120.5, 1, 0, WAITING)
        self.assigned(121.0, 2, FAILURE, {1: 0}, lost=20)
        self.under_way(122.0, **PHASES)
        self.lost(122.5, 2, 1, "worker 2 (rank 1, a:1) was killed by SIGKILL")
        self.worker(122.5, 3, 1, BOOTING)
        self.worker(129.0, 3, 1, WAITING)
        self.ended(130.0)
        self.assigned(130.0, 3, RESIZE, {1: 0, 3: 1})
        self.under_way(131.0, rendezvous=0.5, sync=0.5)

    def steps(self, slot: int) -> list[tuple[float, SlotState, int]]:
        return self.history.lanes.of_slots["a", slot].steps


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
    assert story.history.rounds.size == 2


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


def test_goodput_by_hand() -> None:
    story = Story()
    story.killed()
    # 111 to 120, 121 to 130, 131 on; 20 steps of a tenth of a second are lost.
    assert story.history.goodput(now=141.0) == pytest.approx((9 + 9 + 10 - 20 / 10) / 41)
    story.ended(151.0)
    assert story.history.goodput(now=200.0) == pytest.approx((9 + 9 + 20 - 2) / 100)


def test_a_round_without_a_step_adds_nothing_to_the_goodput() -> None:
    story = Story()
    story.remark(100.0, "waiting")
    story.assigned(110.0, 1, START, {1: 0})
    story.ended(150.0)
    assert story.history.goodput(now=150.0) == 0.0


@pytest.mark.parametrize("nonsense", [-5.0, 3e11])
@pytest.mark.parametrize("rate", [math.nan, math.inf, -5.0, 1e30])
def test_goodput_is_a_share_whatever_clocks_say(nonsense: float, rate: float) -> None:
    story = Story()
    story.remark(100.0, "waiting")
    story.assigned(110.0, 1, START, {1: 0})
    story.under_way(112.0, rendezvous=nonsense, sync=nonsense)
    story.sample(113.0, 3, rate)
    story.ended(120.0)
    goodput = story.history.goodput(now=120.0)
    assert goodput is not None
    assert 0.0 <= goodput <= 0.5
    Page().take(story.history)


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
    feed = story.history.feed

    def feed_and_send(event: status_pb2.Event) -> None:
        feed(event)
        page.take(story.history)

    story.history.feed = feed_and_send  # type: ignore[method-assign]
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
    story.history.feed(status_pb2.Event(seq=3, time=timestamp(1.0), text="again", remark=status_pb2.Remark()))
    assert story.history.since(0) == before


def test_a_run_joined_late() -> None:
    story = Story()
    story.killed()
    known = story.history.rounds
    resting = cause_pb2.Cause(text="slot 1 rests")
    run = status_pb2.Run(
        run_id="abcd",
        start_time=timestamp(100.0),
        now=timestamp(135.0),
        activity=cause_pb2.Cause(text="round 1.3"),
        failures=7,
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
    late.feed(status_pb2.Event(seq=story.seq, time=timestamp(1.0), text="is in it", remark=status_pb2.Remark()))
    assert late.log == []
    assert late.rounds.size == known.size == 2
    assert late.goodput(141.0) == pytest.approx((9 + 10) / 41)
    assert [state for _, state, _ in late.lanes.of_slots["a", 1].steps] == [SlotState.TRAINING, SlotState.TRAINING]
    assert late.since(0)["head"]["failures"] == 7
    assert list(late.hosts["a"].obstacles) == [resting]
    late.join(run, [first, story.reported], story.seq)
    assert len(late.rounds.all) == 2
    assert len(late.lanes.of_slots["a", 1].steps) == 2


def test_a_look_that_is_older_than_an_event_is_passed_over() -> None:
    story = Story()
    story.killed()
    story.history.look(status_pb2.Run(activity=cause_pb2.Cause(text="long ago")), story.seq - 1)
    assert story.history.doing == "round 1.3"
    story.history.look(status_pb2.Run(activity=cause_pb2.Cause(text="now")), story.seq)
    assert story.history.doing == "now"
    assert story.history.hosts == {}


def test_a_month_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 100)
    monkeypatch.setattr(lanes, "MAX_STATE_CHANGES", 400)
    story, page = Story(), Page()
    time, lost = 0.0, 0
    for n in range(1, 1001):
        time += 10.0
        story.assigned(time, n, FAILURE, {n * 4 + slot: slot for slot in range(4)}, lost=1)
        story.under_way(time + 1.0, sync=0.5, first_step=0.5)
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
    assert page.points == whole.points
    assert len(whole.rounds) <= 100
    assert max(len(steps) for steps in whole.lanes.values()) <= 100
    assert len(whole.log) <= MAX_LOG_LINES
    assert length < 400_000
    assert whole.head["steps_lost"] == lost
    assert story.history.goodput(time + 9) == pytest.approx((8.5 + 9 * 999 - 0.1 * 999) / (time + 9 - 10), rel=1e-3)
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
