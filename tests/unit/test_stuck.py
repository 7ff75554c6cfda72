"""A thread is stuck if it sleeps inside torch; not if it computes, and not anywhere else."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count

import pytest

from edriver.worker.watch.stuck import QUIET_CHECKS, StuckWatch
from tests.unit.stuck_thread import thread_in


@pytest.fixture
def seconds() -> Callable[[], float]:
    ticks = count(0.0, 1.0)  # a second passes at every look
    return lambda: next(ticks)


def looks(watch: StuckWatch, thread: threading.Thread, times: int, cut_off: bool = False) -> list[bool]:
    """Look several times; between two looks a thread that computes gets to use the processor."""
    found = []
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    for _ in range(times):
        found.append(watch.stuck(cut_off))
        used, deadline = time.clock_gettime(clock), time.monotonic() + 0.2
        while time.clock_gettime(clock) < used + 0.02 and time.monotonic() < deadline:
            threading.Event().wait(0.001)
    return found


@pytest.mark.parametrize(
    ("filename", "source", "stuck"),
    [
        pytest.param("/x/torch/distributed/c10d.py", "lock.acquire()", True, id="asleep in a collective"),
        pytest.param("/x/torch/autograd/graph.py", "lock.acquire()", True, id="asleep in backward"),
        pytest.param("/x/edriver/worker/sync/relay.py", "lock.acquire()", True, id="asleep in a relay"),
        pytest.param("/x/edriver/horovod/collectives/handles.py", "lock.acquire()", True, id="asleep in a handle"),
        pytest.param("/x/torch/utils/data/dataloader.py", "lock.acquire()", False, id="waits for data"),
        pytest.param("/x/train.py", "lock.acquire()", False, id="asleep in the script"),
        pytest.param("/x/torch/autograd/graph.py", "while go: pass", False, id="computes in backward"),
    ],
)
def test_stuck(filename: str, source: str, stuck: bool, seconds: Callable[[], float]) -> None:
    thread, end = thread_in(filename, source)
    try:
        watch = StuckWatch(thread, bound=3, clock=seconds)
        assert looks(watch, thread, 2) == [False, False]
        assert looks(watch, thread, 5)[-1] is stuck
    finally:
        end()


BACKWARD = "/x/torch/autograd/graph.py"


def no_time() -> float:
    """Processor time of the other threads, where there are none: a test does not know what pytest's own are doing."""
    return 0.0


def quiet_watch(thread: threading.Thread, others_want: Callable[[], bool] = lambda: False) -> StuckWatch:
    return StuckWatch(thread, bound=3600, others_want=others_want, others_used=no_time)


def test_a_thread_that_nothing_can_wake_is_found_after_a_few_looks() -> None:
    thread, end = thread_in(BACKWARD, "lock.acquire()")
    try:
        watch = quiet_watch(thread)
        found = looks(watch, thread, QUIET_CHECKS + 1, cut_off=True)  # it may not sleep yet at the first
        assert not any(found[: QUIET_CHECKS - 1])
        assert found[-1]
    finally:
        end()


def test_while_something_else_waits_for_a_processor_a_few_looks_are_not_enough() -> None:
    thread, end = thread_in(BACKWARD, "lock.acquire()")
    wants = True
    try:
        watch = quiet_watch(thread, others_want=lambda: wants)
        assert not any(looks(watch, thread, 2 * QUIET_CHECKS, cut_off=True))
        wants = False
        assert looks(watch, thread, QUIET_CHECKS, cut_off=True) == [False] * (QUIET_CHECKS - 1) + [True]
    finally:
        end()


def test_whether_other_threads_want_a_processor() -> None:
    # A process of its own: pytest's may have other threads. Deriving a key releases the interpreter's lock.
    program = """if True:
        import hashlib, threading
        from edriver.worker.watch.stuck import others_want_a_processor
        assert not others_want_a_processor()
        helper = threading.Thread(target=lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10_000_000), daemon=True)
        helper.start()
        assert others_want_a_processor()
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_while_connections_are_left_a_few_looks_are_not_enough() -> None:
    thread, end = thread_in(BACKWARD, "lock.acquire()")
    try:
        watch = quiet_watch(thread)
        assert not any(looks(watch, thread, QUIET_CHECKS - 1, cut_off=True))
        assert not watch.stuck(cut_off=False)
        assert not any(looks(watch, thread, QUIET_CHECKS - 1, cut_off=True))
    finally:
        end()


def test_while_something_else_computes_a_few_looks_are_not_enough() -> None:
    thread, end = thread_in(BACKWARD, "lock.acquire()")
    helper, end_helper = thread_in("/x/helper.py", "while go: pass")
    try:
        watch = StuckWatch(thread, bound=3600)
        assert not any(looks(watch, helper, 2 * QUIET_CHECKS, cut_off=True))
    finally:
        end()
        end_helper()
