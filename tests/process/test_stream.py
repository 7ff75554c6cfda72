"""A stream under a real driver: with processes that read, one worker killed, and each sample trained on once."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.process.running import SCRIPTS, running

LENGTHS = [90, 7, 0, 60, 33, 61, 50, 12]


def test_each_sample_is_trained_on_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    with running(["-np", "3", "--min-np", "1", sys.executable, str(SCRIPTS / "stream.py")], tmp_path) as run:
        assert run.end() == 0, run.text
        # "was killed by SIGKILL", or "has ended" where the run is over before the kernel has reported how.
        assert re.search(r"worker \d \(rank 1, \S+\) (was killed by SIGKILL|has ended)", run.text), run.text
        trained = json.loads((tmp_path / "trained").read_text())
        assert all(count >= 1 for row, length in zip(trained, LENGTHS, strict=True) for count in row[:length])
        repeated = sum(map(sum, trained)) - sum(LENGTHS)
        assert repeated <= 2, "a row of the last batch, of three workers"
        assert run.gone(), run.left_behind()
