"""What `edriver status` prints."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from edriver.client import RunError
from edriver.commands.status import counts, lines, listed, status
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.status import MAX_ANSWER_AGE, StatusServer
from edriver.model import events
from edriver.model.actions import FinishRun, RunEnd
from edriver.model.cause import AgentFault, AgentFaultKind, Cause, CauseKind, Exit, WorkerName
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.memory_checkpoint import CheckpointId, DiskTarget, Shard
from edriver.model.mode import Mode
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.runview.history import History
from edriver.v1 import cause_pb2, status_pb2
from edriver.wire.conversion import duration, epoch_seconds, span_seconds, timestamp

NOTHING = "0 rounds; 0 failures, 0 preemptions, 0 resizes; 0 steps lost"


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: bad batch\n'


class Story:
    """A run that began at 0, and what an observer reads of it."""

    def __init__(self, mode: Mode = Mode.ELASTIC) -> None:
        self.membership = Membership(Settings(np=2, min_np=1, max_np=2, mode=mode), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: 0.0), lambda: 0.0)
        self._now = 0.0
        self.server = StatusServer("abcd", self.membership, self.event_history, lambda: self._now)

    def take(self, event: events.Event, now: float) -> None:
        if self.event_history.take(event, self.membership.step(event, now), None, []):
            self.server.announce()

    def begin_round(self) -> None:
        self.take(events.HostsObserved(HostSet((Host("a", 2),))), 0.0)
        self.take(events.AgentConnected("a", 1), 1.0)
        for worker in (1, 2):
            self.take(events.WorkerWaiting(worker, 1, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""), 2.0)

    def reported(self, now: float) -> list[str]:
        return list(lines(self.run(now)))

    def run(self, now: float) -> status_pb2.Run:
        self._now = now
        return self.server.answer().run


def last_failure(said: list[str]) -> str:
    return next(line for line in said if line.startswith("last failure: "))


def test_restart_mode_and_the_latest_failure_stay_shown() -> None:
    story = Story(Mode.RESTART)
    story.begin_round()
    assert story.reported(2.0)[0] == "run abcd, 2 s, restart mode: round 1.1: 2 workers on a"
    story.take(events.WorkerEnding(2), 3.0)
    story.take(events.WorkerExited(2, -6, recorded=events.RecordedError(TRACEBACK, 3.0)), 3.0)
    story.take(events.WorkerExited(1, -15), 3.5)
    for worker in (3, 4):
        story.take(events.WorkerWaiting(worker, 1, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""), 4.0)
    said = story.reported(5.0)
    assert said[0] == "run abcd, 5 s, restart mode: round 1.2: 2 workers on a"
    assert said[1].startswith("goodput not known: "), "a failure may have thrown all work away"
    assert said[2] == "2 rounds; 1 failure, 0 preemptions, 0 resizes; number of lost steps not known"
    assert last_failure(said) == (
        "last failure: worker 2 (rank 1, a:1) was killed by SIGABRT after it had recorded ValueError at train.py:3: "
        "ValueError: bad batch"
    )


def test_of_workers_that_end_together_the_one_with_the_oldest_error_file_failed_first() -> None:
    story = Story(Mode.RESTART)
    story.begin_round()
    story.take(events.WorkerEnding(1), 3.0)
    story.take(events.WorkerExited(1, 3, recorded=events.RecordedError("RuntimeError: connection closed", 50.0)), 3.0)
    assert last_failure(story.reported(3.0)).startswith("last failure: worker 1 (rank 0, a:0) exited with code 3")
    story.take(events.WorkerExited(2, -15, recorded=events.RecordedError(TRACEBACK, 49.5)), 3.5)  # it was stopped
    assert last_failure(story.reported(4.0)) == (
        "last failure: worker 2 (rank 1, a:1) raised an exception: ValueError: bad batch"
    )


def test_the_last_words_of_a_worker_are_shown_though_training_went_on_before_it_was_reaped() -> None:
    story = Story()
    story.begin_round()
    story.take(events.WorkerEnding(2), 3.0)
    story.take(events.WorkerWaiting(1, 1, Version(RoundId(1, 1), 7), StoreAddress("10.0.0.1", 4001), ""), 3.1)
    assert last_failure(story.reported(4.0)) == "last failure: worker 2 (rank 1, a:1) has ended"
    story.take(events.WorkerExited(2, 9, tail="CUDA error 719\ngiving up\n"), 5.0)
    assert last_failure(story.reported(6.0)).startswith("last failure: worker 2 (rank 1, a:1) exited with code 9")
    assert story.run(6.0).last_failure.tail == "CUDA error 719\ngiving up\n"


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        pytest.param(status_pb2.Run(replica_size=2), "6 workers, 3 replicas of 2", id="size"),
        pytest.param(status_pb2.Run(on_loss="wait"), "6 workers, one replica of 6, on loss: wait", id="all"),
        pytest.param(status_pb2.Run(replica_size=6), "6 workers, 1 replica of 6", id="one"),
        pytest.param(status_pb2.Run(replicas_are_hosts=True), "6 workers, in a replica on each host", id="hosts"),
        pytest.param(status_pb2.Run(replica_size=1), None, id="none"),
        pytest.param(status_pb2.Run(), None, id="earlier-release"),
    ],
)
def test_the_replicas_of_a_run(replicas: status_pb2.Run, text: str | None) -> None:
    replicas.size = 6
    said = lines(replicas)
    assert next((line for line in said if "workers" in line), None) == text


def test_what_was_started_and_when_the_last_failure_was() -> None:
    story = Story()
    run = story.run(2.0)
    run.command[:] = ["python", "my train.py"]
    run.tags["lr"] = "1e-3"
    run.origin.CopyFrom(status_pb2.Origin(user="ada", host="login1", commit="c0ffee", edriver="1.2.3", python="3.11.2"))
    run.last_failure.cause.text = "worker 2 was killed"
    run.last_failure.time.CopyFrom(timestamp(90.0))
    run.now.CopyFrom(timestamp(275.0))
    said = list(lines(run))
    first = said.index("command: python 'my train.py'")
    assert said[first : first + 5] == [
        "command: python 'my train.py'",
        "tags: lr=1e-3",
        "commit: c0ffee",
        "started by: ada on login1",
        "versions: edriver 1.2.3, Python 3.11.2",
    ]
    assert "last failure, 3 min 5 s ago: worker 2 was killed" in said[:first], "what the run does comes first"


def test_the_time_of_a_failure_is_that_of_its_event() -> None:
    story = Story()
    story.begin_round()
    cause = Cause(CauseKind.KILLED, WorkerName(2, "a", 1, 1), detail=Exit(-9))
    event = events.WorkerExited(2, -9)
    story.event_history.take(event, story.membership.step(event, 3.0), cause, [])
    story.server.announce()
    assert epoch_seconds(story.run(8.0).last_failure.time) == story.event_history.view.loss_times[2]


def test_what_a_run_was_started_from_is_there_once_it_is_found() -> None:
    story = Story()
    assert not story.run(2.0).HasField("origin")
    story.server.origin.set_result(status_pb2.Origin(user="ada"))
    assert story.run(3.0).origin.user == "ada"


def test_a_run_from_its_start_to_its_first_round() -> None:
    story = Story()
    first, *_, last = story.reported(0.0)
    assert (first, last) == ("run abcd, 0 s, elastic mode: starting", NOTHING)
    story.take(events.HostsObserved(HostSet((Host("a", 2), Host("b", 1)))), 0.0)
    story.take(events.AgentConnected("a", 1), 1.0)
    assert story.reported(1.0) == [
        "run abcd, 1 s, elastic mode: waiting: 0 of 2 workers are ready",
        "no step for 1.0 s: boot",
        "goodput none yet: booting 1.0 s",
        NOTHING,
        "host a (2 slots) is used",
        "host b (1 slot) has not answered yet",
        "worker 1 (a:0) booting",
        "worker 2 (a:1) booting",
    ]
    for worker in (1, 2):
        story.take(events.WorkerWaiting(worker, 1, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""), 2.0)
    assert story.reported(3.4) == [
        "run abcd, 3 s, elastic mode: round 1.1: 2 workers on a",
        "no step for 3.4 s: boot",
        "goodput none yet: booting 3.4 s",
        NOTHING.replace("0 rounds", "1 round"),
        "host a (2 slots) is used",
        "host b (1 slot) has not answered yet",
        "worker 1 (a:0, rank 0) training",
        "worker 2 (a:1, rank 1) training",
    ]


def test_a_strangers_connection_is_counted_apart() -> None:
    story = Story()
    story.begin_round()
    story.take(events.PeerUnproven(2, RoundId(1, 1), "connected from 127.0.0.1:4711"), 3.0)
    assert "1 round; 0 failures, 0 preemptions, 0 resizes, 1 unproven connection; 0 steps lost" in story.reported(4.0)


def test_lost_steps_that_are_known_are_shown_in_restart_mode_too() -> None:
    spent = status_pb2.TimeSpent()
    spent.unknown.FromSeconds(5)
    assert counts(status_pb2.Run(time_spent=spent))[-1] == "number of lost steps not known"
    assert counts(status_pb2.Run(time_spent=spent, steps_lost=8))[-1] == "8 steps lost"


def test_the_newest_checkpoints_in_memory() -> None:
    story = Story(Mode.RESTART)
    story.take(events.HostsObserved(HostSet((Host("a", 1), Host("b", 1)))), 0.0)
    for number, host in enumerate(("a", "b"), start=1):
        story.take(events.AgentConnected(host, number), 1.0)
        story.take(events.WorkerWaiting(number, 1, NO_VERSION, StoreAddress(host, 4000 + number), ""), 1.0)
    shards = [Shard(CheckpointId(RoundId(1, 1), 1200, 2), rank, b"", 2**20) for rank in (0, 1)]

    def hold(host: str, agent_id: int, *held: Shard) -> None:
        story.take(events.CheckpointsHeld(host, agent_id, f"{host}:1", held, used=2**21, limit=2**30), 3.0)

    hold("a", 1, shards[0])
    assert not [line for line in story.reported(4.0) if "checkpoint" in line]
    hold("b", 2, dataclasses.replace(shards[1], save_seconds=0.25))
    newest = "newest checkpoint in memory: step 1,200, 10 s old, 2.0 MiB, saved in 250 ms"
    assert newest in story.reported(10.0)
    assert [(host.checkpoint_bytes, host.checkpoint_limit) for host in story.run(10.0).hosts] == [(2**21, 2**30)] * 2
    hold("a", 1, shards[0], dataclasses.replace(shards[1], copy=True))
    hold("b", 2, shards[1], dataclasses.replace(shards[0], copy=True))
    copied = "; that of step 1,200, 20 s old, is in the memory of other hosts, too, 0 ms after its save"
    assert newest.replace("10 s", "20 s") + copied in story.reported(20.0)
    assert not [line for line in story.reported(20.0) if "disk" in line]
    target = DiskTarget("/shared", 3, "/bin/python", due=True)
    later = [Shard(CheckpointId(RoundId(1, 1), 1300, 2), rank, b"", 2**20) for rank in (0, 1)]
    hold("a", 1, shards[0], dataclasses.replace(later[0], disk=target))
    hold("b", 2, shards[1], later[1])
    written = "; that of step 1,300 is being written to disk, for 25 s so far"
    assert [line for line in story.reported(25.0) if line.endswith(written)]
    page = History()
    page.look(story.run(25.0), 1000)
    assert dict(page.since(0)["head"]["about"])["checkpoint in memory"].startswith("step 1,300, 25 s old")


def test_why_a_host_is_not_used() -> None:
    story = Story()
    story.take(events.HostsObserved(HostSet((Host("a", 2), Host("b", 2), Host("c", 1)))), 0.0)
    story.take(events.AgentLost("a", 1, AgentFault(AgentFaultKind.ENDED, "ssh: no route")), 1.0)
    story.take(events.DrainRequested("b", None, "it runs hot"), 1.0)
    story.take(events.AgentConnected("c", 3), 1.0)
    story.take(events.WorkerExited(1, 1, ""), 2.0)
    assert story.reported(2.0)[4:8] == [
        "last failure: worker 1 (c:0) exited with code 1",
        "host a (2 slots) is not used: ssh: no route",
        "host b (2 slots) is drained: it runs hot",
        "host c (1 slot) is used",
    ]


def test_where_time_has_gone() -> None:
    run = status_pb2.Run(
        run_id="a",
        now=timestamp(200.0),
        time_spent=status_pb2.TimeSpent(
            training=duration(80.0),
            recovering=duration(0.4),
            waiting=duration(7.6),
            booting=duration(12.0),
            goodput=0.8,
        ),
        interruption=status_pb2.Interruption(
            kind=status_pb2.INTERRUPTION_KIND_FAILURE,
            start_time=timestamp(192.0),
            cause=cause_pb2.Cause(text="worker 2 (rank 1, a:1) was killed by SIGKILL"),
        ),
        recoveries=status_pb2.RecoverySummary(count=3, median=duration(0.4), longest=duration(75.0)),
    )
    said = list(lines(run))
    assert said[1:3] == [
        "no step for 8.0 s: failure, worker 2 (rank 1, a:1) was killed by SIGKILL",
        "goodput 80.0 %: training 1 min 20 s, recovering 400 ms, waiting 7.6 s, booting 12.0 s",
    ]
    assert said[4] == "recovery 400 ms after a failure (median), 1 min 15 s at worst"
    run.ClearField("interruption")
    run.recoveries.Clear()
    said = list(lines(run))
    assert not any(line.startswith(("no step", "recovery")) for line in said)
    run.interruption.kind = status_pb2.INTERRUPTION_KIND_STALL
    run.interruption.start_time.CopyFrom(timestamp(201.0))  # the worker's clock is ahead
    assert "no step for 0 ms: stall" in lines(run)


def test_an_answer_serves_others_for_a_moment_unless_something_happens() -> None:
    story, now = Story(), 0.0
    server = StatusServer("abcd", story.membership, story.event_history, lambda: now)

    def reported() -> tuple[float, list[str]]:
        context: object = None
        run = asyncio.run(server.GetRun(status_pb2.GetRunRequest(), context)).run  # type: ignore[arg-type]
        return epoch_seconds(run.now), [host.name for host in run.hosts]

    assert reported() == (0.0, [])
    now = before = 0.9 * MAX_ANSWER_AGE
    assert reported() == (0.0, [])
    story.take(events.HostsObserved(HostSet((Host("a", 2),))), 0.0)
    assert reported() == (before, ["a"])
    now = 2 * MAX_ANSWER_AGE
    assert reported() == (now, ["a"])
    now = 0.1  # the clock was set back
    assert reported() == (0.1, ["a"])


def test_several_in_few_words() -> None:
    younger = status_pb2.Run(
        run_id="b",
        mode=status_pb2.RUN_MODE_ELASTIC,
        start_time=timestamp(50.0),
        now=timestamp(110.0),
        activity=cause_pb2.Cause(text="starting"),
        min_np=1,
        max_np=2,
        command=["a b"],
    )
    older = status_pb2.Run(
        run_id="a",
        mode=status_pb2.RUN_MODE_RESTART,
        start_time=timestamp(10.0),
        now=timestamp(110.0),
        activity=cause_pb2.Cause(text="round 1.1"),
        size=1,
        min_np=1,
        max_np=2,
        name="warm-up",
    )
    assert list(listed([younger, older])) == [
        "run a (warm-up), 1 min 40 s, restart mode, 1 worker (1 to 2): round 1.1",
        "    ",
        "run b, 1 min 0 s, elastic mode, 0 workers (1 to 2): starting",
        "    'a b'",
        "for more about one of them: edriver status --run RUN",
    ]


class OneRun:
    """A client of the only run that there is."""

    def __enter__(self) -> OneRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self) -> status_pb2.Run:
        return status_pb2.Run(run_id="a")


def test_json_has_the_shape_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edriver.commands.status.living_runs", lambda: {"a": None})
    monkeypatch.setattr("edriver.commands.status.client_of", lambda flags: OneRun())
    (listed_run,) = json.loads(status(["--json"]))
    assert json.loads(status(["--json", "--run", "a"])) == listed_run
    assert (listed_run["run_id"], listed_run["failures"], listed_run["hosts"]) == ("a", 0, [])
    assert "progress" not in listed_run


def test_json_of_no_run_is_an_empty_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edriver.commands.status.living_runs", dict)
    monkeypatch.setattr("edriver.client.addresses.living_runs", dict)
    assert json.loads(status(["--json"])) == []
    with pytest.raises(RunError, match="no run"):
        status([])


def test_the_duration_of_a_run_is_measured_by_a_monotonic_clock() -> None:
    story, times = Story(), iter([1000.0, 1075.0])
    server = StatusServer("abcd", story.membership, story.event_history, lambda: -86400.0, steady=lambda: next(times))
    run = server.answer().run
    assert span_seconds(run.uptime) == 75.0
    assert next(lines(run)).startswith("run abcd, 1 min 15 s, elastic mode: ")


def test_the_duration_of_a_run_stops_with_its_end() -> None:
    """Its driver may still wait for a last scrape of its metrics."""
    now = 1000.0
    story = Story()
    history = EventHistory(story.membership, ProgressTracker(lambda: now), lambda: now)
    server = StatusServer("abcd", story.membership, history, lambda: now, steady=lambda: now)
    now = 1560.0
    history.end(FinishRun(RunEnd.DONE, Cause(CauseKind.SUCCESS)))
    now = 1590.0
    assert history.lasted() == 560.0
    assert next(lines(server.answer().run)).startswith("run abcd, 9 min 20 s, elastic mode")
