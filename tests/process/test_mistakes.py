"""Mistakes in scripts, under a real driver: each is reported with its place in the code, and no run hangs silently."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, edriver, running

MISTAKES = [sys.executable, str(SCRIPTS / "mistakes.py")]


@pytest.mark.parametrize(
    ("mistake", "kind"),
    [
        pytest.param("surrogate", "ValueError", id="a-lone-surrogate"),
        pytest.param("large", "ValueError", id="a-message-of-5-MB"),
        pytest.param("unprintable", "UnprintableError", id="a-message-that-raises"),
    ],
)
def test_an_exception_whose_text_cannot_be_sent(tmp_path: Path, mistake: str, kind: str) -> None:
    with running(["-np", "1", *MISTAKES], tmp_path, {"MISTAKE": mistake}) as run:
        assert run.end() == 1, run.text
        run.line(rf"its only worker raised {kind} at .*mistakes.py:\d+, in {mistake}$")
        run.line(r"failed: worker 1 \(rank 0, localhost:0\) raised an exception$")


@pytest.mark.long
def test_uneven_steps_are_reported_with_the_ranks_that_are_done_and_that_wait(tmp_path: Path) -> None:
    with running(["-np", "2", *MISTAKES], tmp_path, {"MISTAKE": "uneven"}) as run:
        run.line(r"rank 1 is done")
        message = run.line(
            r"edriver: (uneven steps: worker 2 \(rank 1, localhost:1\) is done after 5 steps; "
            r"worker 1 \(rank 0, localhost:0\) is waiting in a collective after 5 steps)$"
        )
        assert message[1] in edriver("status", "--run", run.id).stdout


def test_a_value_that_differs_between_ranks_only_after_the_first_step_is_named(tmp_path: Path) -> None:
    with running(["-np", "3", "-H", "localhost:2,127.0.0.2:1", *MISTAKES], tmp_path, {"MISTAKE": "differs"}) as run:
        assert run.end() == 0, run.text
        said = run.line(
            r"workers that hold the same version 1\.1:4 disagree about the state's 'best': (.*)\. The next change of "
            r"members would end the run\. Attributes of the state must be equal on all ranks: keep values that differ "
            r"out of it, or have all ranks take rank 0's \(from_rank_0=\)$"
        )
        assert re.fullmatch(
            r"worker \d \(rank \d, \S+\) has best=\d\.5; worker \d \(rank \d, \S+\) has best=\d\.5", said[1]
        )
        assert run.text.count("disagree about") == 1


def test_a_collective_that_one_rank_alone_waits_in_is_named_with_its_place(tmp_path: Path) -> None:
    flags = ["-np", "3", "-H", "localhost:2,127.0.0.2:1", *MISTAKES]
    with running(flags, tmp_path, {"MISTAKE": "barrier"}) as run:
        said = run.line(
            r"no step for \d+ s; all 3 are waiting for one another in collectives: rank 0 \(\S+\) at (\S+ \(train\)), "
            r"rank 1 \(\S+\) at (\S+ \(log_loss\))\. All ranks have to call the same collectives in the same order"
        )
        assert (place_in_mistakes(said[1]), place_in_mistakes(said[2])) == (
            'dist.all_reduce(torch.ones(1000 if MISTAKE == "other-size" else 1))',
            "dist.barrier()",
        )
        assert said[0].partition(";")[2] in edriver("status", "--run", run.id).stdout


@pytest.mark.long
def test_a_collective_of_another_size_that_one_rank_alone_calls_is_named_with_all_places(tmp_path: Path) -> None:
    flags = ["-np", "3", "--min-np", "2", "-H", "localhost:2,127.0.0.2:1", *MISTAKES]
    with running(flags, tmp_path, {"MISTAKE": "other-size"}) as run:
        said = run.line(
            r"worker \d+ \(rank 1, \S+\) was killed by SIGABRT: ranks called different collectives\. It called one at "
            r"\S+/(mistakes.py:\d+), in log_loss, and received data of another; (.+)\. All ranks have to call the same "
        )
        assert place_in_mistakes(said[1]) == "dist.all_reduce(torch.ones(1))"
        assert re.search(r"worker \d+ \(rank [02], \S+\) was at \S+mistakes.py:\d+, in train", said[2]), said[2]
        assert run.end() == 0, run.text


def test_a_collective_of_the_same_size_that_one_rank_alone_calls_ends_in_uneven_steps(tmp_path: Path) -> None:
    with running(["-np", "3", "-H", "localhost:2,127.0.0.2:1", *MISTAKES], tmp_path, {"MISTAKE": "same-size"}) as run:
        run.line(
            r"uneven steps: worker \d+ \(rank 0, \S+\) and worker \d+ \(rank 2, \S+\) are done after 6 steps; "
            r"worker \d+ \(rank 1, \S+\) is waiting in a collective after 5 steps$"
        )


def place_in_mistakes(place: str) -> str:
    """The line of the script at mistakes.py:LINE."""
    line = re.match(r"mistakes\.py:(\d+)\b", place)
    assert line is not None, place
    return (SCRIPTS / "mistakes.py").read_text().splitlines()[int(line[1]) - 1].strip()


def test_a_run_without_a_step_says_so_in_its_last_line(tmp_path: Path) -> None:
    with running(["-np", "1", *MISTAKES], tmp_path, {"MISTAKE": "no-step"}) as run:
        assert run.end() == 0
        run.line(r"^edriver: done: 1 round, [0-9.]+ s, but no step was recorded: nothing called state\.commit\(\) or ")


def test_a_run_inside_a_run(tmp_path: Path) -> None:
    with running(["-np", "1", *MISTAKES], tmp_path, {"MISTAKE": "nested"}) as run:
        assert run.end() == 1, run.text
        run.line(r"RuntimeError: edriver.run was entered again, with evaluate at .*mistakes.py:\d+, inside a function")
        assert "never" not in run.text


def test_a_script_that_catches_what_leads_to_the_next_round(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *MISTAKES], tmp_path, {"MISTAKE": "swallow"}) as run:
        run.line("rank 0 is careless")
        run.line("rank 1 is careless")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line("caught PeerLostError")
        run.line(
            r"SwallowedInterruptError: worker 1 \(rank 0\) continued in a round that is over: the script caught "
            r"PeerLostError, raised by the boundary at .*mistakes.py:\d+, and called again at .*mistakes.py:\d+\."
        )
        assert run.end() == 1, run.text


@pytest.mark.long
def test_a_script_that_catches_the_loss_of_a_peer_around_a_step_is_shown(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *MISTAKES], tmp_path, {"MISTAKE": "skip"}) as run:
        run.line("rank 0 is careless")
        run.line("rank 1 is careless")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(
            r"\[0\]<stderr>:the script is still in round 1\.1, which is over: does it catch RuntimeError around a step"
        )
        run.line(r"\[0\]<stderr>:  File \".*mistakes.py\", line \d+, in skip_what_fails$")


def test_a_thread_that_keeps_a_process_from_ending_is_named(tmp_path: Path) -> None:
    with running(["-np", "2", *MISTAKES], tmp_path, {"MISTAKE": "thread"}) as run:
        run.line(
            r"\[1\]<stderr>:the script has ended, and this process waits for its thread uploader, which is not a "
            r"daemon$"
        )
        run.line(r"\[1\]<stderr>:thread uploader:$")
        run.line(r"\[1\]<stderr>:  File \".*threading.py\", line \d+, in wait$")
