"""Asking where the threads of a worker stand: what the driver asks of agents, and an agent of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from edriver.agent.workers import py_spy, stack_taker
from edriver.agent.workers.stack_taker import StackTaker
from edriver.driver.services import stack_questions
from edriver.driver.services.stack_questions import StackQuestions, is_meant, names_of
from edriver.text.stacks_text import stacks_text
from edriver.v1 import agent_pb2, notification_pb2, stacks_pb2, status_pb2

WORKERS = [
    status_pb2.WorkerStatus(
        worker_id=number,
        host="ab"[number > 2],
        slot=number % 2,
        rank=number - 1,
        state=status_pb2.WORKER_STATE_TRAINING,
    )
    for number in (1, 2, 3)
]


class Agents:
    """All agents of a run; each answers when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connected = True
        self.asked: list[tuple[str, int, int]] = []
        self.questions = StackQuestions(self._ask, lambda: self.now)

    def _ask(self, host: str, message: agent_pb2.ConnectResponse) -> bool:
        question = message.take_worker_stacks
        self.asked.append((host, question.worker_id, question.number))
        return self.connected

    def answer(self, text: str) -> None:
        _, worker_id, number = self.asked[-1]
        taken = agent_pb2.WorkerStacksTaken(worker_id=worker_id, number=number, stacks=stacks_pb2.Stacks(text=text))
        self.questions.answered(taken)

    async def stacks_of(self, *workers: status_pb2.WorkerStatus) -> list[stacks_pb2.Stacks]:
        return [taken async for _, taken in self.questions.of_all(workers)]


def running(work: Callable[[Agents], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await work(Agents())

    asyncio.run(run())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_those_who_ask_within_a_second_share_an_answer() -> None:
    async def work(agents: Agents) -> None:
        askers = [asyncio.create_task(agents.stacks_of(WORKERS[0])) for _ in range(3)]
        await settle()
        assert [asked[:2] for asked in agents.asked] == [("a", 1)]
        agents.answer("here")
        assert [found[0].text for found in await asyncio.gather(*askers)] == ["here"] * 3
        agents.now += 0.9
        assert (await agents.stacks_of(WORKERS[0]))[0].text == "here"
        agents.now += 0.2
        later = asyncio.create_task(agents.stacks_of(WORKERS[0]))
        await settle()
        assert len(agents.asked) == 2
        agents.answer("there")
        assert (await later)[0].text == "there"

    running(work)


def test_one_who_goes_away_takes_no_answer_from_the_others() -> None:
    async def work(agents: Agents) -> None:
        hasty = asyncio.create_task(agents.stacks_of(WORKERS[0]))
        patient = asyncio.create_task(agents.stacks_of(WORKERS[0]))
        await settle()
        hasty.cancel()
        await settle()
        agents.answer("here")
        assert (await patient)[0].text == "here"

    running(work)


def test_an_agent_that_is_away_or_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_questions, "ANSWER_BOUND", 0.01)

    async def work(agents: Agents) -> None:
        silent = stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_AGENT_SILENT)
        assert await agents.stacks_of(*WORKERS[:2]) == [silent, silent]
        agents.answer("too late")
        agents.connected = False
        assert await agents.stacks_of(WORKERS[2]) == [silent]

    running(work)


def test_a_bounded_number_of_workers_is_asked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_questions, "MAX_QUESTIONS", 2)

    async def work(agents: Agents) -> None:
        everyone = asyncio.create_task(agents.stacks_of(*WORKERS))
        await settle()
        assert [asked[1] for asked in agents.asked] == [1, 2]
        agents.answer("second")
        await settle()
        assert agents.asked[-1][1] == 3
        agents.answer("third")
        agents.asked.pop()
        agents.asked.pop()
        agents.answer("first")
        assert [found.text for found in await everyone] == ["first", "second", "third"]

    running(work)


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        (status_pb2.ReadStacksRequest(), [1, 2, 3]),
        (status_pb2.ReadStacksRequest(rank=0), [1]),
        (status_pb2.ReadStacksRequest(host="a"), [1, 2]),
        (status_pb2.ReadStacksRequest(host="a", slot=0), [2]),
        (status_pb2.ReadStacksRequest(worker_id=3), [3]),
        (status_pb2.ReadStacksRequest(rank=7), []),
    ],
    ids=["all", "rank", "host", "slot", "worker", "none"],
)
def test_whose_stacks_are_meant(request_: status_pb2.ReadStacksRequest, meant: list[int]) -> None:
    assert [worker.worker_id for worker in WORKERS if is_meant(request_)(worker)] == meant


def test_a_worker_that_is_leaving_gives_its_rank_away() -> None:
    leaving = status_pb2.WorkerStatus(worker_id=4, rank=0, state=status_pb2.WORKER_STATE_STOPPING)
    assert not is_meant(status_pb2.ReadStacksRequest(rank=0))(leaving)


def test_the_workers_there_are_are_named() -> None:
    assert names_of(WORKERS) == "the run has a:1 (rank 0), a:0 (rank 1), b:1 (rank 2)"
    assert names_of([]) == "the run has no workers now"


class Worker:
    """A worker that answers in one way, and its taker."""

    def __init__(
        self, folder: Path, answers: str = "", listens: bool = True, stopped: bool = False, spied: str = ""
    ) -> None:
        self.answers = answers
        self.asked = 0
        self.file = folder / "w1.stacks"
        self.file.write_text("what was written before")
        self.taker = StackTaker(lambda: listens, lambda: stopped, self._deliver, self._signal, self.file, self._spy)
        self._spied = spied

    def _deliver(self, notice: notification_pb2.Notice) -> None:
        self.asked += 1
        if self.answers == "late":
            self.taker.answered(notification_pb2.StacksTaken(number=notice.take_stacks.number - 1, stacks="late"))
        if self.answers == "interpreter":
            self.taker.answered(notification_pb2.StacksTaken(number=notice.take_stacks.number, stacks="here"))

    async def _spy(self) -> str:
        return self._spied

    def _signal(self) -> None:
        if self.answers in ("signal", "late"):
            self.file.write_text(self.file.read_text() + "in native code")


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({"answers": "interpreter"}, stacks_pb2.Stacks(text="here", source=stacks_pb2.STACK_SOURCE_WORKER)),
        ({"answers": "signal"}, stacks_pb2.Stacks(text="in native code", source=stacks_pb2.STACK_SOURCE_SIGNAL)),
        ({"answers": "late"}, stacks_pb2.Stacks(text="in native code", source=stacks_pb2.STACK_SOURCE_SIGNAL)),
        ({}, stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_SILENT)),
        ({"stopped": True}, stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_STOPPED)),
        ({"listens": False}, stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_NOT_LISTENING)),
        (
            {"stopped": True, "spied": "Thread 1"},
            stacks_pb2.Stacks(
                text="Thread 1",
                source=stacks_pb2.STACK_SOURCE_PY_SPY,
                obstacle=stacks_pb2.STACK_OBSTACLE_STOPPED,
            ),
        ),
    ],
    ids=["interpreter", "signal", "answer to an earlier question", "silent", "stopped", "booting", "read by py-spy"],
)
def test_a_worker_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: dict[str, Any], expected: stacks_pb2.Stacks
) -> None:
    monkeypatch.setattr(stack_taker, "ANSWER_BOUND", 0.05)
    monkeypatch.setattr(stack_taker, "LOOK_INTERVAL", 0.001)

    async def run() -> stacks_pb2.Stacks:
        asked = Worker(tmp_path, **worker)
        found = await asked.taker.take()
        assert asked.asked == ("listens" not in worker and "stopped" not in worker)
        return found

    assert asyncio.run(run()) == expected


@pytest.mark.parametrize(
    ("stacks", "text"),
    [
        (
            stacks_pb2.Stacks(text="thread MainThread:\n  here\n", source=stacks_pb2.STACK_SOURCE_WORKER),
            "rank 0, worker 1 (a:1, process 12):\nthread MainThread:\n  here",
        ),
        (
            stacks_pb2.Stacks(text="thread \x1b[2J:\n  here\r\n", source=stacks_pb2.STACK_SOURCE_WORKER),
            "rank 0, worker 1 (a:1, process 12):\nthread \\x1b[2J:\n  here",
        ),
        (
            stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_GONE),
            "rank 0, worker 1 (a:1, process 12): its process has ended",
        ),
    ],
    ids=["stacks", "a-threads-name-is-from-outside", "none"],
)
def test_as_text(stacks: stacks_pb2.Stacks, text: str) -> None:
    answer = status_pb2.ReadStacksResponse(worker_id=1, rank=0, host="a", slot=1, pid=12, stacks=stacks)
    assert stacks_text(answer) == text


def test_each_obstacle_has_its_text() -> None:
    for obstacle in stacks_pb2.StackObstacle.values():
        answer = status_pb2.ReadStacksResponse(stacks=stacks_pb2.Stacks(obstacle=obstacle))
        assert ("not known" in stacks_text(answer)) == (obstacle == stacks_pb2.STACK_OBSTACLE_UNSPECIFIED)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ('#!/bin/sh\necho "Thread $4 (active)"; exit 1', "Thread 4711 (active)\n"),
        ("#!/bin/sh\necho Error: no permission >&2; exit 1", ""),
        ("#!/bin/sh\nexec sleep 60", ""),
        ("#!/no/interpreter", ""),
        (None, ""),
    ],
    ids=["reads", "may not", "hangs", "cannot be started", "is not there"],
)
def test_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, text: str) -> None:
    monkeypatch.setattr(py_spy, "SPY_BOUND", 0.5 if "sleep" in (program or "") else 60.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if program is not None:
        (tmp_path / "py-spy").write_text(program)
        (tmp_path / "py-spy").chmod(0o700)
    assert asyncio.run(py_spy.dump(4711)) == text


SCRIPT = [
    '  File "/home/me/train.py", line 42, in train',
    "    loss.backward()",
    '  File "/home/me/model.py", line 7, in forward',
    "    return self.layer(x)",
]
TORCH = [
    '  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 5, in backward',
    "    torch.autograd.backward(",
]
OTHER = ["thread edriver-notify:", '  File "/home/me/other.py", line 1, in poll', "    wait()"]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        pytest.param(
            ["thread MainThread:", *SCRIPT[:2], *TORCH, *SCRIPT[2:], *OTHER],
            ["the script, most recent call last:", *SCRIPT, "all threads:"],
            id="between others",
        ),
        pytest.param(["thread MainThread:", *SCRIPT], [], id="nothing but the script"),
        pytest.param(["thread MainThread:", *TORCH, *OTHER], [], id="nothing of the script"),
    ],
)
def test_the_frames_of_the_script_come_first(lines: list[str], shown: list[str]) -> None:
    answer = status_pb2.ReadStacksResponse(worker_id=3, host="a", stacks=stacks_pb2.Stacks(text="\n".join(lines)))
    assert stacks_text(answer).splitlines()[1:] == [*shown, *lines]
