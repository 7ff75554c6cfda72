"""What is remembered of workers' output, and which of it is wanted."""

from __future__ import annotations

import pytest

from edriver.client import RunError
from edriver.commands.logs import chosen, text_of
from edriver.driver.observe.worker_output import WorkerOutput, is_wanted
from edriver.v1 import agent_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds

ALL = is_wanted(status_pb2.ReadOutputRequest())
LINE = 200  # bytes that a line takes beside its text


def said(
    output: WorkerOutput,
    worker: int,
    text: str,
    host: str = "a",
    rank: int | None = None,
    stderr: bool = False,
    replaces: bool = False,
) -> None:
    line = agent_pb2.OutputLine(
        worker_id=worker, slot=worker % 2, rank=rank, stderr=stderr, text=text.encode(), replaces=replaces
    )
    output.add(host, agent_pb2.ForwardOutputRequest(lines=[line]))


def texts(output: WorkerOutput, seq: int = 0, limit: int = 100, **request: object) -> list[str]:
    wanted = is_wanted(status_pb2.ReadOutputRequest(**request))  # type: ignore[arg-type]
    return [line.text.decode() for line in output.since(seq, wanted, limit)]


def test_lines_come_in_the_order_in_which_they_were_heard() -> None:
    now = [5.0]
    output = WorkerOutput(lambda: now[0])
    for worker, text in ((1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e")):
        said(output, worker, text)
        now[0] += 1.0
    assert texts(output) == ["a", "b", "c", "d", "e"]
    lines = output.since(0, ALL, 100)
    assert [line.seq for line in lines] == [1, 2, 3, 4, 5]
    assert [epoch_seconds(line.message().time) for line in lines] == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert texts(output, seq=3) == ["d", "e"]
    assert texts(output, seq=5) == []
    assert texts(output, limit=2) == ["a", "b"]


def test_of_a_progress_bar_the_last_state_is_kept() -> None:
    output = WorkerOutput(lambda: 0.0)
    said(output, 1, "the loss is not a number", stderr=True)
    said(output, 1, "10%", stderr=True)
    said(output, 1, "step 17")
    said(output, 2, "20%", stderr=True)
    said(output, 1, "20%", stderr=True, replaces=True)
    assert texts(output) == ["the loss is not a number", "step 17", "20%", "20%"]
    assert texts(output, seq=4) == ["20%"]  # a follower sees it go on
    said(output, 3, "its first line that is heard", replaces=True)
    assert texts(output, worker_id=3) == ["its first line that is heard"]


def test_what_is_asked_for() -> None:
    output = WorkerOutput(lambda: 0.0)
    said(output, 1, "boots")
    said(output, 1, "trains", rank=0)
    said(output, 2, "elsewhere", host="b", rank=0)
    said(output, 3, "other slot", rank=1)
    assert texts(output, rank=0) == ["trains", "elsewhere"]
    assert texts(output, host="b") == ["elsewhere"]
    assert texts(output, host="a", slot=1) == ["boots", "trains", "other slot"]
    assert texts(output, worker_id=3) == ["other slot"]
    assert texts(output, worker_id=1, rank=0) == ["trains"]
    assert texts(output, rank=7) == []


def test_the_last_lines_that_are_wanted() -> None:
    output = WorkerOutput(lambda: 0.0)
    for number in range(10):
        said(output, 1 + number % 2, str(number))
    assert texts(output, seq=output.before_last(3, 0, ALL)) == ["7", "8", "9"]
    odd = is_wanted(status_pb2.ReadOutputRequest(worker_id=2))
    assert texts(output, seq=output.before_last(2, 0, odd), worker_id=2) == ["7", "9"]
    assert output.before_last(10, 0, ALL) == 0
    assert output.before_last(99, 4, ALL) == 4
    assert output.before_last(1, 8, ALL) == 9


def test_of_each_worker_the_latest_lines_are_kept() -> None:
    output = WorkerOutput(lambda: 0.0, worker_limit=3 * (LINE + 1))
    said(output, 1, "x")
    for number in range(5):
        said(output, 2, str(number))
    assert texts(output) == ["x", "2", "3", "4"]
    said(output, 2, "long" * 1000)
    assert texts(output, worker_id=2) == ["long" * 1000]  # one line is always kept


def test_of_all_workers_those_that_were_silent_longest_are_forgotten() -> None:
    output = WorkerOutput(lambda: 0.0, limit=4 * (LINE + 1))
    for worker, text in ((1, "a"), (2, "b"), (1, "c"), (3, "d")):
        said(output, worker, text)
    said(output, 4, "e")
    assert texts(output) == ["a", "c", "d", "e"]
    said(output, 5, "f")
    said(output, 5, "g")
    assert texts(output) == ["d", "e", "f", "g"]
    said(output, 6, "huge" * 1000)
    assert texts(output) == ["huge" * 1000]


def test_it_stays_within_its_bounds_whatever_is_written() -> None:
    output = WorkerOutput(lambda: 0.0, worker_limit=5000, limit=50_000)
    for number in range(5000):
        said(output, 1 + number * number % 97, "x" * (number * 7919 % 3000))
    lines = output.since(0, ALL, 10_000)
    assert sum(len(line.text) + LINE for line in lines) <= 50_000
    for worker in {line.worker_id for line in lines}:
        assert sum(len(line.text) + LINE for line in lines if line.worker_id == worker) <= 5000
    assert lines[-1].seq == output.last_seq == 5000


@pytest.mark.parametrize(
    ("word", "means"),
    [
        pytest.param(None, (None, "", None), id="all"),
        pytest.param("3", (3, "", None), id="rank"),
        pytest.param("node-1:2", (None, "node-1", 2), id="slot"),
        pytest.param("[fe80::1]:2", (None, "fe80::1", 2), id="slot-of-an-address"),
        pytest.param("node-1", (None, "node-1", None), id="host"),
    ],
)
def test_whose_lines_are_meant(word: str | None, means: tuple[int | None, str, int | None]) -> None:
    assert chosen(word) == means


@pytest.mark.parametrize("word", ["a:", "a:x", ":1", "a:-1"])
def test_what_is_no_worker_is_refused(word: str) -> None:
    with pytest.raises(RunError, match="is not a RANK, HOST:SLOT or HOST"):
        chosen(word)


def test_lines_of_several_workers_have_the_prefix_of_the_run() -> None:
    line = status_pb2.WorkerLine(host="a", slot=1, text=b"\xff", stderr=True)
    assert text_of(line, alone=False) == b"[a:1]<stderr>:\xff\n"
    line.rank = 0
    assert text_of(line, alone=False) == b"[0]<stderr>:\xff\n"
    assert text_of(line, alone=True) == b"\xff\n"
