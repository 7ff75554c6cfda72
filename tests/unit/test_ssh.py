"""The ssh commands, and how their results are explained; a real sshd is in tests/process/test_ssh.py."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from edriver.driver.launch.ssh import failure, remote_command
from edriver.driver.services.join_configs import portable_variables
from edriver.system.ssh_client import SshOptions, identity_error

VERSION = "1.2.3"


def test_the_operators_port_and_key_are_used_and_a_host_cannot_be_an_option() -> None:
    command = SshOptions(2222, "/k").command("-oProxyCommand=evil", "true")
    assert command[command.index("-p") + 1] == "2222"
    assert command[command.index("-i") + 1] == "/k"
    assert command[-3:] == ["--", "-oProxyCommand=evil", "true"]


def test_ssh_never_prompts_for_a_password() -> None:
    assert "BatchMode=yes" in SshOptions().command("a", "true")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("import sys; sys.exit(7)", 7, id="its-exit-code"),
        pytest.param("import os; os.kill(os.getpid(), 9)", 137, id="a-signal"),
    ],
)
def test_the_remote_shell_says_how_the_agent_ended(tmp_path: Path, script: str, code: int) -> None:
    python = tmp_path / "a python"
    python.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{script}'\n")
    python.chmod(0o755)
    done = subprocess.run(["sh", "-c", remote_command(str(python), "a'b")], stderr=subprocess.DEVNULL, timeout=20)
    assert done.returncode == code


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        pytest.param(255, ["u@a: Permission denied (publickey)."], "accepts none of this user's keys", id="key"),
        pytest.param(255, ["Host key verification failed."], "its host key is not known here", id="unknown-host"),
        pytest.param(
            255,
            ["@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "Host key verification failed."],
            "is not the one in known_hosts",
            id="changed-host",
        ),
        pytest.param(255, ["ssh: connect to host a: Connection refused"], "no sshd listens there", id="refused"),
        pytest.param(
            255,
            ["ssh: Could not resolve hostname a: Name or service not known"],
            "ssh configuration knows its name (ssh: Could not resolve hostname a: Name or service not known)",
            id="unknown-name",
        ),
        pytest.param(255, ["ssh: something new"], "ssh to it failed: ssh: something new", id="anything-else"),
        pytest.param(255, [], "it gave no reason", id="silence"),
        pytest.param(127, ["sh: 1: python: not found"], "no Python can be run there at", id="no-python"),
        pytest.param(1, ["/p: No module named edriver"], f"pip install edriver=={VERSION}", id="no-edriver"),
        pytest.param(137, [], "its agent was killed by SIGKILL", id="killed"),
        pytest.param(3, ["the last word", ""], "its agent exited with code 3: the last word", id="exit"),
    ],
)
def test_a_failure_is_put_into_words(code: int, message: list[str], text: str) -> None:
    assert text in failure("a", code, message, VERSION)


def test_variables_about_the_drivers_own_host_are_not_passed_on() -> None:
    environment = {"HOME": "/h", "SSH_AUTH_SOCK": "/s", "XDG_RUNTIME_DIR": "/x", "DISPLAY": ":0", "MODEL": "big"}
    assert portable_variables(environment) == {"MODEL": "big"}


def test_a_key_that_ssh_would_ignore_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    assert "there is no file" in identity_error(str(key))
    key.touch(mode=0o644)
    assert "chmod 600" in identity_error(str(key))
    key.chmod(0o600)
    assert identity_error(str(key)) == ""
