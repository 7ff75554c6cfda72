"""What a run was started from, as its driver finds it."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from pathlib import Path

import pytest

from edriver.common.release import VERSION
from edriver.driver.observe.origin import find_origin, found_later, recorded_origin
from edriver.text.message_writer import plain
from edriver.v1 import status_pb2
from tests import needs


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_where_there_is_no_repository(tmp_path: Path) -> None:
    origin = find_origin(tmp_path)
    assert (origin.host, origin.directory) == (socket.gethostname(), str(tmp_path))
    assert (origin.commit, origin.changed) == ("", False)
    assert (origin.edriver, origin.python) == (VERSION, platform.python_version())
    assert origin.user
    assert origin.torch


@pytest.mark.needs(needs.GIT)
def test_a_commit_is_read_and_no_program_of_the_repository_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\necho >> {ran}\n")
    hook.chmod(0o755)
    folder = tmp_path / "job"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "train.py").write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    hooks = folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "post-index-change").symlink_to(hook)
    git(folder, "config", "core.fsmonitor", str(hook))
    git(folder, "config", "diff.external", str(hook))
    git(folder, "config", "diff.mine.textconv", str(hook))
    (folder / ".git/info/attributes").write_text("*.py diff=mine\n")
    commit = (folder / ".git" / git(folder, "symbolic-ref", "HEAD")).read_text().strip()
    ran.unlink(missing_ok=True)  # of the commands above
    assert (find_origin(folder).commit, find_origin(folder).changed) == (commit, False)
    os.utime(folder / "train.py", (1, 1))
    assert not find_origin(folder).changed
    (folder / "train.py").write_text("2\n")
    assert find_origin(folder).changed
    assert not ran.exists()


def test_what_the_first_driver_has_recorded(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert recorded_origin(file) is None
    origin = find_origin(tmp_path)
    for text, found in (
        (json.dumps({"origin": plain(origin)}), origin),
        ("{}", None),
        ("[]", None),
        ('{"origin": 1}', None),
    ):
        file.write_text(text)
        assert recorded_origin(file) == found


def test_who_asks_is_not_kept_waiting_for_what_cannot_be_found() -> None:
    def fail() -> status_pb2.Origin:
        raise RuntimeError("no account")

    assert str(found_later(fail).exception(60.0)) == "no account"
    assert found_later(lambda: status_pb2.Origin(user="ada")).result(60.0).user == "ada"
