"""A stall: a worker that waits for no other makes no progress for longer than its phase may last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edriver.model.stall_limits import DEFAULT_STALL_LIMITS, Phase, collective_timeout, limits_of, text_of
from edriver.worker import context, training_phase
from edriver.worker.watch.stall import MAX_CHECK_INTERVAL, StallReport, StallWatch, stacks


class Time:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def thread_in(filename: str) -> Iterator[threading.Thread]:
    """A thread that stands in this file."""
    go, there = threading.Event(), threading.Event()
    code = compile("there.set()\nwhile not go.is_set(): pass_time()", filename, "exec")
    nap = compile("import time\ndef pass_time(): time.sleep(0.001)", filename, "exec")
    names = {"go": go, "there": there}
    exec(nap, names)
    thread = threading.Thread(target=lambda: exec(code, names), name="the one", daemon=True)
    thread.start()
    assert there.wait(20)
    try:
        yield thread
    finally:
        go.set()
        thread.join(20)


def looked_at(watch: StallWatch, time: Time, seconds: float, phase: Phase = Phase.STEP) -> list[StallReport]:
    """The stalls that are found while this time passes without progress."""
    found = []
    for _ in range(int(seconds)):
        time.now += 1.0
        if stall := watch.look("as before", phase):
            found.append(stall)
    return found


def test_no_progress_for_as_long_as_the_phase_may_last() -> None:
    time = Time()
    with thread_in("/x/train.py") as thread:
        watch = StallWatch(thread, {"step": 60.0, "eval": 0.0}, time)
        assert watch.look("as before", Phase.STEP) is None
        assert looked_at(watch, time, 59) == []
        (stall,) = looked_at(watch, time, 1)
        assert (stall.phase, stall.seconds) == (Phase.STEP, 60.0)
        assert stall.stacks.startswith("thread the one:\n")
        assert '"/x/train.py"' in stall.stacks


def test_progress_begins_the_count_anew() -> None:
    time = Time()
    watch = StallWatch(threading.current_thread(), {"step": 60.0}, time)
    for progress in range(5):
        assert watch.look(progress, Phase.STEP) is None
        time.now += 59
    assert looked_at(watch, time, 59) == []


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.SAVE], ids=str)
def test_a_phase_without_a_limit_lasts_for_ever(phase: Phase) -> None:
    time = Time()
    watch = StallWatch(threading.current_thread(), {"step": 60.0, "eval": 0.0}, time)
    assert looked_at(watch, time, 10_000, phase) == []


def test_a_stall_is_reported_again_after_as_long() -> None:
    time = Time()
    watch = StallWatch(threading.current_thread(), {"step": 60.0}, time)
    assert len(looked_at(watch, time, 181)) == 3


def test_a_worker_that_waits_in_a_collective_is_not_blamed() -> None:
    time = Time()
    with thread_in("/x/torch/distributed/c10d.py") as thread:
        watch = StallWatch(thread, {"step": 60.0}, time)
        assert looked_at(watch, time, 10_000) == []


def test_a_process_that_stood_still_blames_itself_for_a_look_or_two() -> None:
    time = Time()
    watch = StallWatch(threading.current_thread(), {"step": 60.0}, time)
    watch.look("as before", Phase.STEP)
    time.now += 3600
    assert watch.look("as before", Phase.STEP) is None
    assert looked_at(watch, time, 59 - 2 * MAX_CHECK_INTERVAL) == []


def test_stacks_name_every_thread_but_the_one_that_asks() -> None:
    with thread_in("/x/train.py") as thread:
        text = stacks(thread)
    assert text.startswith("thread the one:")
    assert "thread MainThread" not in text


def test_a_threads_name_begins_no_line_of_its_own() -> None:
    end = threading.Event()
    named = threading.Thread(target=end.wait, name="a\n\nrank 3, worker 4 (b:0):\x1b[2J")
    named.start()
    try:
        assert "thread a\\n\\nrank 3, worker 4 (b:0):\\x1b[2J:\n" in stacks(threading.main_thread())
    finally:
        end.set()
        named.join()


@pytest.mark.parametrize(
    ("texts", "changed"),
    [
        pytest.param([], {}, id="defaults"),
        pytest.param(["60"], dict.fromkeys(Phase, 60.0), id="all"),
        pytest.param(["60", "save=600"], dict.fromkeys(Phase, 60.0) | {"save": 600.0}, id="all-but-one"),
        pytest.param(["eval=0", "eval=1.5"], {"eval": 1.5}, id="the-last-wins"),
    ],
)
def test_limits(texts: list[str], changed: dict[str, float]) -> None:
    limits = limits_of(texts)
    assert limits == {**DEFAULT_STALL_LIMITS, **changed}
    assert limits_of(text_of(limits).split(), base={}) == limits


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lunch=3", "unknown phase 'lunch': choose one of init, step, commit, eval, save"),
        ("soon", "'soon' is neither SECONDS nor PHASE=SECONDS"),
        ("step=-1", "'step=-1': give seconds, or 0 for no limit"),
        ("nan", "'nan': give seconds, or 0 for no limit"),
    ],
)
def test_what_is_no_limit(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        limits_of([text])


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        pytest.param({}, 1800.0, id="none"),
        pytest.param(DEFAULT_STALL_LIMITS, 2700.0, id="the-defaults"),
        pytest.param({"step": 60.0, "eval": 7200.0}, 10800.0, id="a-long-one"),
        pytest.param({"step": 60.0, "eval": 0.0}, 365 * 86400.0, id="for-ever"),
    ],
)
def test_a_collective_may_wait_longer_than_any_member_may_be_busy(limits: dict[str, float], seconds: float) -> None:
    assert collective_timeout(limits) == seconds


def test_a_phase_ends_where_its_block_ends_whatever_happens_in_it() -> None:
    before, changes = context.current.phase.phase, context.current.phase.changes

    def evaluate() -> None:
        with training_phase.phase("eval"):
            assert context.current.phase.phase is Phase.EVAL
            raise KeyError

    with pytest.raises(KeyError):
        evaluate()
    assert context.current.phase.phase is before
    assert context.current.phase.changes == changes + 2


def test_a_phase_that_there_is_not() -> None:
    sentence = "unknown phase 'evaluate': choose one of init, step, commit, eval, save"
    with pytest.raises(ValueError, match=sentence), training_phase.phase("evaluate"):
        pass
