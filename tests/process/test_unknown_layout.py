"""A run in which no connection can be severed: it warns about that at the start, and still recovers from a loss."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from tests.process.running import SCRIPTS, running


def test_a_worker_is_killed(tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "unknown_layout.py")]
    with running(["-np", "3", "--min-np", "1", *script], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 2 passed step 5")
        assert len(re.findall(r"does not work here: no Gloo device was found in /proc/self/fdinfo", run.text)) == 3
        first = run.pids()
        seen = len(run.lines)
        os.kill(first[2], signal.SIGKILL)
        run.line(r"rank 2 of 3 pid \d+ at step [1-9]", after=seen)
        run.line(r"rank 2 passed step", after=seen)
        assert first[0] in run.pids().values() or first[1] in run.pids().values(), "the state was held by a survivor"
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
