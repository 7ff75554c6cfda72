"""Limits on open files: raised where possible, and reported where they are too low; real processes, real limits."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from edriver.common.join_config import JoinConfig
from edriver.system.descriptors import MIN_DESCRIPTORS, check_room

ASK = (
    "import resource; from edriver.system.descriptors import raise_limit; raise_limit(); "
    "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
)


def limited(soft: int, hard: int, *command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh", sys.executable, *command],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("soft", "hard"), [(100, 300), (300, 300)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int) -> None:
    asked = limited(soft, hard, "-c", ASK)
    assert asked.stdout.split() == [b"300", b"300"], asked.stderr


@pytest.mark.parametrize("command", [["-np", "1", "true"], ["status"], ["agent", "--driver", "h:1"]])
def test_too_few_for_any_command_is_one_sentence(command: list[str]) -> None:
    refused = limited(16, 16, "-m", "edriver", *command)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.decode() == (
        "edriver: a process may have 16 open files here, but edriver needs at least 64: raise the limit "
        "(ulimit -Hn 64, or LimitNOFILE= of a systemd unit)\n"
    )


def test_too_few_for_an_agent_is_one_sentence() -> None:
    join_config = JoinConfig("run", "here", 1, ("unix:/nowhere",), directory="", environment={}).to_json()
    refused = limited(16, 16, "-m", "edriver.agent.main", "--host", "here", given=join_config)
    assert refused.returncode == 2
    assert b"a process may have 16 open files here, but edriver needs at least 64" in refused.stderr


def test_the_fewest_are_enough_to_start_with() -> None:
    started = limited(MIN_DESCRIPTORS, MIN_DESCRIPTORS, "-m", "edriver", "--no-records", "-np", "1", "true")
    assert b"exited with code 0 before its edriver.run was done" in started.stderr


def test_room_for_more() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    check_room(limit // 2, "a small thing")
    with pytest.raises(
        RuntimeError, match=rf"^a large thing needs {limit} more open files, but this process, which has \d+, may"
    ):
        check_room(limit, "a large thing")
