"""A test that never ends: a run here, one over ssh where it can be, and a process that torch's tests fork."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import tests.torch_stand_ins  # noqa: F401  before torch
from tests.needs import NAMESPACES, SSHD
from tests.process.running import running
from tests.process.sites import site
from tests.session_guard import MARK
from tests.torch.group_ranks import members

WAITS = ["sh", "-c", "trap '' TERM HUP; echo started; sleep 3600"]


def tell(*words: str) -> None:
    os.write(int(os.environ["TELL"]), f"{' '.join(words)}\n".encode())


def test_waits_for_ever(tmp_path: Path) -> None:
    tell("session", *(name for name in os.environ if name.startswith(MARK)))
    with contextlib.ExitStack() as started:
        runs = [started.enter_context(running(["-np", "1", *WAITS], tmp_path))]
        if os.environ.get("CI") or (NAMESPACES.is_met() and SSHD.is_met()):
            there = started.enter_context(site(tmp_path, 1))
            runs.append(started.enter_context(there.running(["-np", "1", "-H", "host1:1", *WAITS], tmp_path)))
        started.enter_context(members(1))
        for run in runs:
            run.line("<stdout>:started")
        tell("all has started")
        threading.Event().wait()
