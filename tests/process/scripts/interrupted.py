"""A test that never ends, with a run on this machine and one over ssh, and a process that torch's tests fork."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.process.running import running
from tests.process.sites import site
from tests.session_guard import marks
from tests.torch.group_ranks import members

WAITS = ["sh", "-c", "trap '' TERM HUP; echo started; sleep 3600"]


def tell(*words: str) -> None:
    os.write(int(os.environ["TELL"]), f"{' '.join(words)}\n".encode())


def test_waits_for_ever(tmp_path: Path) -> None:
    tell("session", *marks())
    with (
        site(tmp_path, 1) as there,
        running(["-np", "1", *WAITS], tmp_path) as here,
        there.running(["-np", "1", "-H", "host1:1", *WAITS], tmp_path) as elsewhere,
        members(1),
    ):
        for run in (here, elsewhere):
            run.line("<stdout>:started")
        tell("all has started")
        threading.Event().wait()
