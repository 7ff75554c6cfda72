"""What holds for a worker's process as a whole."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from typing import Any

import pytest

import edriver
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.context import RoundCounters, WorkerContext

PLACE = replace(SINGLE_WORKER, round_id=RoundId(1, 3), rank=2, size=3)


def test_the_public_functions_answer_for_the_context_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    context.current.place.enter(PLACE)
    assert (edriver.rank(), edriver.size()) == (2, 3)
    with edriver.phase("eval"):
        assert context.current.phase.phase == "eval"
    monkeypatch.setattr(context, "current", WorkerContext())
    assert (edriver.rank(), edriver.size()) == (0, 1)


def _answer(connection: Any) -> None:
    try:
        connection.send((edriver.rank(), edriver.size()))
    except RuntimeError as error:
        connection.send(str(error))


@pytest.mark.parametrize(
    ("method", "answer"), [("fork", (2, 3)), ("spawn", "this process has no rank: the worker that started it")]
)
def test_a_forked_process_has_its_parents_place_and_a_new_one_has_none(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: object
) -> None:
    monkeypatch.setenv("EDRIVER_WORKER_ID", "1")
    monkeypatch.setenv("EDRIVER_WORKER_PID", "1")
    context.current.place.enter(PLACE)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context(method).Process(target=_answer, args=(theirs,))  # type: ignore[attr-defined]
    child.start()
    try:
        assert ours.poll(60)
        answered = ours.recv()
    finally:
        child.kill()
        child.join()
    assert answered == answer or str(answered).startswith(str(answer))


def test_who_listens_twice_is_called_once_for_each_place() -> None:
    called: list[int] = []

    def listener() -> None:
        called.append(edriver.rank())

    context.current.place.listen(listener)
    context.current.place.listen(listener)
    context.current.place.enter(PLACE)
    context.current.place.enter(replace(PLACE, rank=1))
    assert called == [2, 1]


def test_members_of_a_round_count_alike_whatever_else_they_do() -> None:
    counters = RoundCounters()
    first, second = RoundId(1, 1), RoundId(1, 2)
    asked = [("sync", first), ("stream", first), ("sync", first), ("sync", second), ("stream", first)]
    assert [counters.next(purpose, round_id) for purpose, round_id in asked] == [1, 1, 2, 1, 2]


def test_a_room_has_one_object_in_a_context() -> None:
    here, another = WorkerContext(), WorkerContext()
    assert here.part(list) is here.part(list)
    assert here.part(list) is not another.part(list)
    assert isinstance(here.part(dict), dict)
