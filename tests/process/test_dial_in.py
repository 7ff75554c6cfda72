"""Hosts that dial in by themselves: agents that anything may start."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.process.dialling import CREDENTIALS, dialled
from tests.process.running import BOUND, edriver


def test_hosts_dial_in_and_leave_when_the_run_ends(tmp_path: Path) -> None:
    with dialled(tmp_path, "-np", "2", "--min-np", "1", "--max-np", "3") as (run, agents):
        agents.start("a")
        agents.start("b")
        run.line("rank 1 passed step 5")
        assert (tmp_path / CREDENTIALS).stat().st_mode & 0o777 == 0o600
        agents.start("c")
        run.line(r"rank 2 of 3 .* at step ([5-9]|\d\d)")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert [code for code, _ in agents.end()] == [0, 0, 0]
        assert not (tmp_path / CREDENTIALS).exists()
        assert run.gone(), run.left_behind()


def test_an_agent_that_was_killed_may_dial_in_again(tmp_path: Path) -> None:
    with dialled(tmp_path, "-np", "2", "--min-np", "1") as (run, agents):
        agents.start("a")
        second = agents.start("b")
        run.line("rank 1 passed step 5")
        second.kill()
        run.line(r"host b is lost: its agent has not answered for 5 s")
        run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)")
        second.wait()
        after = len(run.lines)
        agents.start("b")
        run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


def test_a_second_host_of_the_same_name_is_named_and_waits(tmp_path: Path) -> None:
    with dialled(tmp_path, "-np", "1") as (run, agents):
        agents.start("a")
        run.line("rank 0 passed step 5")
        agents.start("a")
        run.line(r"a second agent has dialled in as host a: give it another name \(--host\)")
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_strangers_at_the_port_do_not_fill_the_operators_screen(tmp_path: Path) -> None:
    with dialled(tmp_path, "-np", "1", command=["sh", "-c", "sleep 60"]) as (run, agents):
        port = int(run.line(r"edriver agent --driver \S+:(\d+)")[1])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
                stranger.settimeout(BOUND)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(100):
                        pass
        agents.start("a")
        run.line("added a:1")
        assert all(line.startswith("edriver: ") for line in run.lines), run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param({"token": "guess"}, "the driver refuses this agent: UNAUTHENTICATED", id="token"),
        pytest.param({"run_id": "other"}, "the driver refuses this agent: .* not of 'other'", id="run"),
    ],
)
def test_an_agent_with_the_wrong_credentials_is_refused(tmp_path: Path, change: dict[str, str], sentence: str) -> None:
    with dialled(tmp_path, "-np", "1") as (run, agents):
        run.line("edriver agent --driver")
        path = tmp_path / CREDENTIALS
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        agents.start("a")
        ((code, message),) = agents.end()
        assert code == 1
        assert re.search(sentence, message), message


@pytest.mark.parametrize(
    ("mode", "text", "sentence"),
    [
        pytest.param(0o644, "{}", "can be read by others: chmod 600 it", id="readable"),
        pytest.param(0o600, "{}", "not a join config of edriver's driver", id="something-else"),
        pytest.param(None, "", "No such file or directory", id="missing"),
    ],
)
def test_credentials_that_are_none(tmp_path: Path, mode: int | None, text: str, sentence: str) -> None:
    path = tmp_path / CREDENTIALS
    if mode is not None:
        path.write_text(text)
        path.chmod(mode)
    done = edriver("agent", "--driver", "127.0.0.1:1", "--credentials", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith("edriver agent: ")
    assert sentence in done.stderr
