"""Looks at a training thread: what its time goes into, and what it says when no step is made for long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from edriver.model.script_error import ScriptError, script_place
from edriver.model.stall_limits import Phase
from edriver.v1 import notification_pb2 as pb
from edriver.v1 import pace_pb2
from edriver.wire.conversion import span_seconds
from edriver.worker.watch import training_looks
from edriver.worker.watch.activity import activity_of
from edriver.worker.watch.script_location import place_of, script_line
from edriver.worker.watch.training_looks import LOOK_INTERVAL, TrainingLooks

COLLECTIVE = "/site-packages/torch/distributed/distributed_c10d.py"
BACKWARD = "/site-packages/torch/autograd/graph.py"
LOADER = "/site-packages/torch/utils/data/dataloader.py"
QUEUE = "/lib/python3.11/multiprocessing/queues.py"
SCRIPT = "/home/me/train.py"


def frame_of(*files: str) -> FrameType:
    """The innermost frame of calls from one file into the next."""
    namespace: dict[str, Callable[[], FrameType]] = {"inner": lambda: sys._getframe(1)}
    for file in reversed(files):
        source = compile("def outer():\n    return inner()\n", file, "exec")
        made = {"inner": namespace["inner"]}
        exec(source, made)
        namespace = {"inner": made["outer"]}
    return namespace["inner"]()


@pytest.mark.parametrize(
    ("files", "asleep", "activity"),
    [
        ([SCRIPT, COLLECTIVE], True, pace_pb2.WORKER_ACTIVITY_WAITING),
        ([SCRIPT, BACKWARD], True, pace_pb2.WORKER_ACTIVITY_WAITING),
        ([SCRIPT, BACKWARD], False, pace_pb2.WORKER_ACTIVITY_COMPUTING),
        ([SCRIPT, LOADER, QUEUE], True, pace_pb2.WORKER_ACTIVITY_LOADING),
        ([SCRIPT, LOADER, SCRIPT], False, pace_pb2.WORKER_ACTIVITY_LOADING),
        ([SCRIPT], True, pace_pb2.WORKER_ACTIVITY_COMPUTING),
        ([SCRIPT], False, pace_pb2.WORKER_ACTIVITY_COMPUTING),
    ],
    ids=["collective", "waits in backward", "computes in backward", "loader", "data set", "sleeps", "computes"],
)
def test_what_it_does(files: list[str], asleep: bool, activity: int) -> None:
    assert activity_of(frame_of(*files), asleep) == activity


def test_the_place_in_the_script() -> None:
    assert place_of(frame_of(SCRIPT, LOADER, threading.__file__)) == "train.py:2 (outer)"


def test_the_line_of_the_script_at_which_an_exception_came_is_one_that_can_be_read_as_a_tracebacks() -> None:
    with pytest.raises(RuntimeError) as raised:
        exec(compile("def log():\n    raise RuntimeError\n\nlog()", SCRIPT, "exec"))
    assert script_place(script_line(raised.value)) == ScriptError("", SCRIPT, 2, "log")
    assert script_line(RuntimeError()) == ""
    assert place_of(frame_of(SCRIPT, "/home/me/data.py")) == "data.py:2 (outer)"


class Worker:
    """A worker whose training thread does as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.progress: Hashable = (1, 1)
        self.phase = Phase.STEP
        self.waits_for_verdict = False
        self.usual_step: float | None = 0.1
        self.waiting_is_seen = True
        self.told: list[str] = []
        self.now = 0.0
        self.asleep = False
        self.files = [SCRIPT]
        self.boundaries = 0
        ident = threading.get_ident()
        monkeypatch.setattr(training_looks, "frames", lambda: {ident: frame_of(*self.files)})
        self.looks = TrainingLooks(
            threading.current_thread(), self, self._changed, lambda: self.now, lambda: self.asleep
        )

    def _changed(self) -> None:
        standing = self.seen().standing
        self.told.append(pace_pb2.WorkerActivity.Name(standing.activity).removeprefix("WORKER_ACTIVITY_").lower())

    def seen(self) -> pb.WorkerProgress:
        progress = pb.WorkerProgress()
        self.looks.fill(progress)
        return progress

    def does(self, seconds: float, *files: str, asleep: bool = False, steps: bool = True) -> None:
        self.files, self.asleep = list(files), asleep
        for _ in range(round(seconds / LOOK_INTERVAL)):
            self.now += LOOK_INTERVAL
            if steps:
                self.boundaries += 1
                self.progress = (1, self.boundaries)
            self.looks.look()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_where_the_time_goes(worker: Worker) -> None:
    worker.does(2.0, SCRIPT, COLLECTIVE, asleep=True)
    worker.does(1.0, SCRIPT, LOADER)
    worker.does(3.0, SCRIPT)
    worker.phase = Phase.EVAL
    worker.does(5.0, SCRIPT)
    seen = worker.seen()
    assert span_seconds(seen.watched_duration) == pytest.approx(6.0)
    assert span_seconds(seen.waiting_duration) == pytest.approx(2.0)
    assert span_seconds(seen.loading_duration) == pytest.approx(1.0)
    assert seen.HasField("delayed_duration")
    assert worker.told == []
    worker.waiting_is_seen = False
    assert not worker.seen().HasField("waiting_duration")


def test_a_process_that_was_stopped_has_waited_for_none(worker: Worker) -> None:
    worker.does(1.0, SCRIPT, COLLECTIVE, asleep=True)
    worker.now += 5.0
    worker.does(LOOK_INTERVAL, SCRIPT, COLLECTIVE, asleep=True)
    seen = worker.seen()
    assert span_seconds(seen.watched_duration) == pytest.approx(6.05)
    assert span_seconds(seen.waiting_duration) == pytest.approx(1.0)


def test_it_says_what_it_does_when_no_step_is_made_and_when_it_goes_on(worker: Worker) -> None:
    worker.does(1.0, SCRIPT)
    worker.does(1.05, SCRIPT, LOADER, steps=False)
    assert worker.told == []
    worker.does(0.15, SCRIPT, LOADER, steps=False)
    assert worker.told == ["loading"]
    assert worker.seen().standing.place == "train.py:2 (outer)"
    assert span_seconds(worker.seen().standing.duration) == pytest.approx(1.2)
    worker.does(0.5, SCRIPT, COLLECTIVE, asleep=True, steps=False)
    assert worker.told == ["loading"]  # not more often than once a second
    worker.does(0.6, SCRIPT, COLLECTIVE, asleep=True, steps=False)
    assert worker.told == ["loading", "waiting"]
    worker.does(1.2, SCRIPT)
    assert worker.told == ["loading", "waiting", "unspecified"]
    assert not worker.seen().HasField("standing")


@pytest.mark.parametrize(
    ("phase", "verdict", "activity"),
    [
        (Phase.EVAL, False, "evaluating"),
        (Phase.SAVE, False, "saving"),
        (Phase.COMMIT, False, "committing"),
        (Phase.STEP, True, "waiting"),
    ],
)
def test_what_is_known_without_a_look(worker: Worker, phase: Phase, verdict: bool, activity: str) -> None:
    worker.phase, worker.waits_for_verdict = phase, verdict
    worker.does(2.0, SCRIPT, steps=False)
    assert worker.told == [activity]


def test_outside_of_a_round_nothing_is_looked_at(worker: Worker) -> None:
    worker.progress = None
    worker.does(5.0, SCRIPT, steps=False)
    assert span_seconds(worker.seen().watched_duration) == 0
    assert worker.told == []


def test_where_the_usual_step_is_not_known_it_takes_longer(worker: Worker) -> None:
    worker.usual_step = None
    worker.does(9.0, SCRIPT, steps=False)
    assert worker.told == []
    worker.does(2.0, SCRIPT, steps=False)
    assert worker.told == ["computing"]


@contextmanager
def looking(thread: threading.Thread) -> Iterator[TrainingLooks]:
    class Steps:
        progress: Hashable = (1, 1)
        phase = Phase.STEP
        waits_for_verdict = False
        usual_step = 1.0
        waiting_is_seen = True

    looks = TrainingLooks(thread, Steps(), lambda: None)
    looks.start()
    try:
        yield looks
    finally:
        looks.stop()


def test_a_real_thread_is_looked_at_and_nothing_stays_open() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    threads = threading.active_count()
    with looking(threading.main_thread()) as looks:
        progress = pb.WorkerProgress()
        while not span_seconds(progress.watched_duration):
            looks.fill(progress)
        assert looks._sleeps() is False  # this thread asks
    # Fewer is no fault: the garbage collector closes what earlier tests left, and their threads end.
    assert threading.active_count() <= threads
    assert set(Path("/proc/self/fd").iterdir()) <= before
