"""A run's progress as text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edriver.driver.observe.console.progress_bar import Bar
from edriver.text.progress_text import age, lasted, progress_line, progress_text, time_text
from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, timestamp


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        pytest.param(status_pb2.Progress(steps=3), "step 3, 0.0 steps/s", id="steps"),
        pytest.param(
            status_pb2.Progress(time_spent=status_pb2.TimeSpent(unknown=duration(1.0))), "", id="restart-mode"
        ),
        pytest.param(
            status_pb2.Progress(steps=90, step_rate=12.34, epoch=2, samples_done=400, samples=1000, sample_rate=10.0),
            "step 90, 12.3 steps/s; epoch 2 40 % done, 1 min 0 s left of it, 10 samples/s",
            id="samples",
        ),
        pytest.param(
            status_pb2.Progress(steps=90, epoch=0, samples=1000), "step 90, 0.0 steps/s; epoch 0 0 % done", id="no-rate"
        ),
        pytest.param(
            status_pb2.Progress(steps=1, reported={"loss": 0.25, "accuracy": 0.5}),
            "step 1, 0.0 steps/s; accuracy 0.5; loss 0.25",
            id="reported",
        ),
    ],
)
def test_one_line(progress: status_pb2.Progress, text: str) -> None:
    assert progress_text(progress) == text


UNKNOWN = status_pb2.TimeSpent(unknown=duration(1.0))


@pytest.mark.parametrize(
    ("progress", "trouble", "text"),
    [
        pytest.param(status_pb2.Progress(time_spent=UNKNOWN), "", "", id="restart-mode"),
        pytest.param(
            status_pb2.Progress(time_spent=UNKNOWN, reported={"loss": 0.25}), "", "2 workers  loss 0.25", id="reported"
        ),
        pytest.param(status_pb2.Progress(steps=3), "", "step 3  0.0 steps/s  2 workers", id="steps"),
        pytest.param(status_pb2.Progress(time_spent=UNKNOWN), "rank 1 is slow", "rank 1 is slow", id="trouble"),
    ],
)
def test_the_line_that_stands_is_empty_if_nothing_is_known(
    progress: status_pb2.Progress, trouble: str, text: str
) -> None:
    assert progress_line(progress, 2, trouble) == text
    assert Bar(Console(file=io.StringIO(), width=80)).line(progress, 2, trouble).decode().rstrip() == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-86401.0, "0 s"), (0, "0 s"), (59.9, "59 s"), (200, "3 min 20 s"), (18600, "5 h 10 min"), (183600, "2 d 3 h")],
)
def test_a_span_of_time(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("run", "since", "seconds", "old"),
    [
        pytest.param(
            status_pb2.Run(start_time=timestamp(100.0), now=timestamp(160.0), uptime=duration(60.0)),
            130.0,
            60.0,
            30.0,
            id="a clock in order",
        ),
        pytest.param(
            status_pb2.Run(start_time=timestamp(90000.0), now=timestamp(3660.0), uptime=duration(60.0)),
            90030.0,
            60.0,
            0.0,
            id="set back",
        ),
        pytest.param(
            status_pb2.Run(start_time=timestamp(100.0), now=timestamp(86460.0), uptime=duration(60.0)),
            130.0,
            60.0,
            60.0,
            id="set forward",
        ),
        pytest.param(
            status_pb2.Run(start_time=timestamp(100.0), now=timestamp(160.0)),
            130.0,
            60.0,
            30.0,
            id="a driver that does not tell",
        ),
        pytest.param(
            status_pb2.Run(start_time=timestamp(160.0), now=timestamp(100.0)), 160.0, 0.0, 0.0, id="that, and set back"
        ),
    ],
)
def test_ages_when_the_clock_is_set(run: status_pb2.Run, since: float, seconds: float, old: float) -> None:
    assert (lasted(run), age(run, timestamp(since))) == (seconds, old)
