"""Stacks of other threads, and pauses of the garbage collector."""

from __future__ import annotations

import gc
import multiprocessing.spawn
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from edriver.worker.backend.interpreter import (
    before_new_process,
    callers,
    format_stack,
    frames,
    prepares_as_known,
    without_collections,
)
from edriver.worker.watch.stall import stacks

BOUND = 240.0


class Walked:
    """A thread in a function that it leaves once it may."""

    def __init__(self) -> None:
        self._inside, self._may_leave, self.has_left = (threading.Event() for _ in range(3))
        self._end = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._inside.wait(BOUND)

    def let_it_leave(self) -> None:
        self._may_leave.set()
        assert self.has_left.wait(BOUND)

    def end(self) -> None:
        self._may_leave.set()
        self._end.set()
        self.thread.join(BOUND)

    def _run(self) -> None:
        self._outer(1)
        self._overwrite(tuple, tuple, tuple, tuple, tuple, tuple, tuple, tuple)

    def _outer(self, number: int) -> int:
        return self._inner(number) + 1

    def _inner(self, number: int) -> int:
        self._inside.set()
        self._may_leave.wait(BOUND)
        return number

    def _overwrite(self, *values: type) -> None:
        copies = [values for _ in values]
        self.has_left.set()
        self._end.wait(BOUND)
        assert copies


class LetsItLeave:
    """Garbage whose finalizer has another thread go on."""

    def __init__(self, walked: Walked) -> None:
        self._walked = walked
        self._self = self

    def __del__(self) -> None:
        self._walked.let_it_leave()


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("allocations", range(12))
@pytest.mark.usefixtures("thresholds")
def test_a_collection_does_not_let_a_thread_leave_while_its_stack_is_walked(allocations: int) -> None:
    walked = Walked()
    ident = walked.thread.ident
    assert ident is not None
    gc.collect()
    LetsItLeave(walked)
    innermost = frames()[ident]
    gc.set_threshold(allocations + 1)
    functions = [frame.f_code.co_name for frame in callers(innermost)]
    gc.set_threshold(100_000)
    assert functions[:5] == ["wait", "wait", "_inner", "_outer", "_run"]
    del innermost
    gc.collect()
    walked.end()


def test_a_stack_reads_as_tracebacks_do() -> None:
    walked = Walked()
    text = format_stack(frames()[walked.thread.ident or 0])
    walked.end()
    lines = text.splitlines()
    at = [line for line in lines if "test_interpreter.py" in line]
    assert [line.rpartition(" in ")[2] for line in at] == ["_run", "_outer", "_inner"]
    assert lines[lines.index(at[-1]) + 1] == "    self._may_leave.wait(BOUND)"


class Kept:
    """What a function has in a variable."""


def test_who_has_looked_at_a_stack_keeps_none_of_its_variables() -> None:
    inside, may_leave = threading.Event(), threading.Event()
    kept: list[weakref.ref[Kept]] = []

    def function() -> None:
        variable = Kept()
        kept.append(weakref.ref(variable))
        inside.set()
        may_leave.wait(BOUND)

    thread = threading.Thread(target=function)
    with without_collections():  # they would hide it
        thread.start()
        assert inside.wait(BOUND)
        assert (thread.ident or 0) in frames()
        assert "function" in stacks(thread)
        may_leave.set()
        thread.join(BOUND)
        assert kept[0]() is None, "a reference cycle keeps the frame alive"


def test_pauses_of_the_collector_overlap() -> None:
    assert gc.isenabled()
    with without_collections():
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_forked_in_a_pause_collects_garbage() -> None:
    with without_collections():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_new_process_is_seen_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepares_as_known()
    monkeypatch.setattr(multiprocessing.spawn, "get_preparation_data", dict)

    def refuse() -> None:
        raise RuntimeError("not now")

    before_new_process(refuse)
    child = multiprocessing.get_context("spawn").Process(target=print)
    with pytest.raises(RuntimeError, match="not now"):
        child.start()


def test_where_new_processes_are_prepared_otherwise_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(multiprocessing.spawn, "get_preparation_data")
    before_new_process(pytest.fail)
    assert not prepares_as_known()
    assert not hasattr(multiprocessing.spawn, "get_preparation_data")
