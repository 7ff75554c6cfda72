"""A worker is blocked if its training thread stands still in a collective, and nothing of its process works for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edriver.worker.watch.blocked import BLOCKED_REPORT_DELAY, BlockedWatch
from edriver.worker.watch.stuck import state_of
from tests.unit.stuck_thread import thread_in
from tests.waiting import until

COLLECTIVE = "/x/torch/distributed/c10d.py"


class Time:
    """A clock, and the processor time of the process's other threads; both are moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used = 5.0

    def look(self, watch: BlockedWatch, progress: object, busy: float = 0.0) -> float | None:
        """Look again, a second later."""
        self.now += 1.0
        self.used += busy
        return watch.look(progress)


def watch_of(source: str, filename: str = COLLECTIVE) -> tuple[BlockedWatch, Time, Callable[[], None]]:
    thread, end = thread_in(filename, source)
    assert thread.ident
    ident, file = thread.ident, Path(f"/proc/self/task/{thread.native_id}/stat")
    until(lambda: sys._current_frames()[ident].f_code.co_filename == filename, every=0.001)  # it is on its way there
    until(lambda: not source.startswith("lock") or state_of(file) == "S", every=0.001)
    clock = Time()
    return BlockedWatch(thread, lambda: clock.now, lambda: clock.used), clock, end


def test_a_wait_is_reported_once_and_its_end_once() -> None:
    watch, clock, end = watch_of("lock.acquire()")
    assert clock.look(watch, "step 1") is None
    assert [clock.look(watch, "step 1") for _ in range(5)] == [None, None, 3.0, None, None]
    assert [clock.look(watch, progress) for progress in ("step 2", "step 3")] == [0.0, None]
    assert [clock.look(watch, "step 3") for _ in range(3)] == [None, None, 3.0]
    end()


@pytest.mark.parametrize(
    ("filename", "source", "busy"),
    [
        pytest.param("/x/train.py", "lock.acquire()", 0.0, id="waits for something else"),
        pytest.param("/x/torch/autograd/graph.py", "while go: pass", 0.0, id="computes"),
        pytest.param(COLLECTIVE, "lock.acquire()", 0.2, id="data flows"),
    ],
)
def test_workers_that_are_not_blocked(filename: str, source: str, busy: float) -> None:
    watch, clock, end = watch_of(source, filename)
    computes = source.startswith("while")
    for _ in range(5):
        assert clock.look(watch, "step 1", busy) is None
        if computes:
            spin(watch)
    end()


def spin(watch: BlockedWatch) -> None:
    """Wait until the thread has used the processor."""
    used = time.clock_gettime(watch._processor_clock)
    until(lambda: time.clock_gettime(watch._processor_clock) >= used + 0.02, every=0.001)


def test_the_count_begins_anew_when_it_has_stirred() -> None:
    watch, clock, end = watch_of("lock.acquire()")
    assert [clock.look(watch, "step 1") for _ in range(3)] == [None, None, None]
    assert clock.look(watch, "step 1", busy=1.0) is None
    assert [clock.look(watch, "step 1") for _ in range(3)] == [None, None, 3.0]
    assert clock.look(watch, "step 1", busy=1.0) == 0.0
    assert BLOCKED_REPORT_DELAY < 3.0
    end()
