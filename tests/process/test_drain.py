"""Hosts that are to be left: nothing is lost, and the rest goes on in the same processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edriver.client.requester import own_name
from tests.process.running import PATIENT, SCRIPTS, Hosts, Run, edriver, running
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
FLAGS = ["-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.1:1"]


def steered(run: Run, *words: str) -> subprocess.CompletedProcess[str]:
    """`edriver drain`, or undrain, of this run."""
    run_id = run.id
    return edriver(*words, "--run", run_id)


def all_train(run: Run) -> list[int]:
    """Wait until all three have passed a few steps; answers the processes on localhost, by rank.

    Which host is the older one, and has rank 0, is for the agents' start to say.
    """
    for rank in range(3):
        run.line(f"rank {rank} passed step 5")
    return [
        pid
        for _, pid in sorted(run.pids().items())
        if b"EDRIVER_HOST=localhost" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]


def goes_on_without(run: Run, staying: list[int], after: int) -> None:
    """Wait until the two others train on, in their processes, from the step they had reached."""
    for rank, pid in enumerate(staying):
        at = run.line(rf"rank {rank} of 2 pid {pid} at step (\d+)", after)
        assert int(at[1]) >= 5
    run.line("round .*: 2 workers on localhost$", after)
    assert "was killed" not in run.text


def test_a_host_and_then_a_slot_is_drained_and_used_again(tmp_path: Path) -> None:
    with running([*FLAGS, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        staying = all_train(run)
        for place, name in (("127.0.0.1", "host 127.0.0.1"), ("127.0.0.1:0", "slot 0 of host 127.0.0.1")):
            after = len(run.lines)
            done = steered(run, "drain", place, "--reason", "it runs hot")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"{place} is being drained; there will be 2 slots to use" in done.stdout
            who = re.escape(own_name())
            run.line(rf"{re.escape(name)} is drained: it runs hot \(requested by {who}\)", after)
            goes_on_without(run, staying, after)
            after = len(run.lines)
            assert steered(run, "undrain", place).returncode == 0
            run.line(rf"{re.escape(name)} may be used again: requested by {who}", after)
            run.line(r"rank 2 of 3 .* at step ([5-9]|\d\d)", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_a_signal_to_an_agent_drains_its_host(tmp_path: Path, number: signal.Signals) -> None:
    with running([*FLAGS, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        staying, after = all_train(run), len(run.lines)
        os.kill(run.agent_of("127.0.0.1"), number)
        run.line(rf"host 127\.0\.0\.1 is drained: its agent received {number.name}", after)
        goes_on_without(run, staying, after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_a_hosts_workers_train_on_until_others_are_ready(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1", "127.0.0.1:2")
    flags = ["-np", "3", "--min-np", "3", "--max-np", "3", "--host-discovery-script", str(hosts.script), *PATIENT]
    with running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        for rank in range(3):
            run.line(f"rank {rank} passed step 5")
        hosts.are("localhost:1", "127.0.0.1:2", "127.0.0.2:2")
        expected = "2 workers train on there until 2 others are ready"
        until(lambda: expected in steered(run, "drain", "127.0.0.1", "--dry-run").stdout, "a third host is free")
        assert "is drained" not in run.text
        after = len(run.lines)
        assert expected in steered(run, "drain", "127.0.0.1").stdout
        run.line("round .*: 3 workers on localhost, 127.0.0.2$", after)
        for rank in range(3):
            run.line(rf"rank {rank} of 3 ", after)
        rounds = [line for line in run.lines[after:] if re.search(r"round .*: \d workers on", line)]
        assert len(rounds) == 1, "all change places in one round change, and never are there fewer"
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_a_host_of_which_discovery_gives_notice_is_left(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1", "127.0.0.1:2")
    flags = ["-np", "3", "--min-np", "1", "--host-discovery-script", str(hosts.script), *PATIENT]
    with running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        for rank in range(3):
            run.line(f"rank {rank} passed step 5")
        after = len(run.lines)
        hosts.are("localhost:1", "127.0.0.1:2 leaving=600", "127.0.0.2:2")
        run.line(r"host 127\.0\.0\.1 is drained: its source gives notice of its loss", after)
        run.line("round .*: 3 workers on localhost, 127.0.0.2$", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


WRONG_ONCE = """#!/bin/sh
cd "$(dirname "$0")"
if mv wrong-once was-wrong 2> /dev/null; then head -2 hosts; else cat hosts; fi
echo >> answers
"""


def test_a_host_leaves_after_two_answers_without_it_and_not_after_one(tmp_path: Path) -> None:
    hosts, answers = Hosts(tmp_path, "localhost:1", "127.0.0.2:1", "127.0.0.3:1"), tmp_path / "answers"
    hosts.script.write_text(WRONG_ONCE)
    flags = ["-np", "3", "--min-np", "1", "--host-discovery-script", str(hosts.script), *PATIENT]
    with running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        for rank in range(3):
            run.line(f"rank {rank} passed step 5")
        (tmp_path / "wrong-once").touch()
        run.line("keeping 127.0.0.3:1 until 2 answers in a row give less")
        before = answers.stat().st_size
        until(lambda: answers.stat().st_size >= before + 5, "five more answers")
        hosts.are("localhost:1", "127.0.0.2:1")
        run.line(r"removed 127\.0\.0\.3:1; now 2 hosts, 2 slots")
        run.line(r"round 1\.2: 2 workers on localhost, 127\.0\.0\.2$")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of one worker, which it cannot do without."""
    with running(["-np", "1", "sh", "-c", "sleep 3600"], tmp_path_factory.mktemp("waiting")) as run:
        run.line("waiting")
        yield run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["drain", "nowhere"], "this run has no host 'nowhere'; it has localhost", id="host"),
        pytest.param(["drain", "localhost:7"], "host localhost has 1 slot, counted from 0", id="slot"),
        pytest.param(["drain", "localhost"], "this leaves 0 slots; the run needs 1 (--min-np", id="the-last"),
        pytest.param(["drain", "localhost:x"], "'localhost:x' is neither HOST nor HOST:SLOT", id="no-slot"),
    ],
)
def test_drains_that_are_refused(waiting: Run, words: list[str], sentence: str) -> None:
    refused = steered(waiting, *words)
    assert refused.returncode == 1
    assert refused.stderr.startswith("edriver: ")
    assert sentence in refused.stderr
    assert waiting.process.poll() is None


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    refused = edriver("drain", "localhost", "--run", "nosuchrun", environ={"TMPDIR": str(tmp_path)})
    assert refused.returncode == 1
    assert re.search("you have no run on this machine|you have no run 'nosuchrun' here", refused.stderr)


def test_a_run_that_has_ended_is_not_denied(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with running(["-np", "1", "true"], tmp_path, state) as run:
        run.end()
        run_id = run.id
    refused = edriver("status", "--run", run_id, environ=state)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"edriver: run {run_id} has ended: edriver report {run_id} shows how\n",
    )
