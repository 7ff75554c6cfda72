"""What a newcomer's script warms up with costs the others nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, Hosts, running

JOB = [sys.executable, str(SCRIPTS / "warms_up.py")]


def test_the_others_train_while_a_newcomer_warms_up(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    (tmp_path / "ready-1").touch()
    flags = ["-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *JOB], tmp_path) as run:
        run.line("worker 1 warms up as rank 0 of 1")
        run.line("worker 1 begins with what it was made with: True")
        run.line("worker 1 is rank 0 of 1 at step 0")
        hosts.are("localhost:1", "127.0.0.2:1")
        warms = run.line("worker 2 warms up as rank 0 of 1")
        begun = run.lines.index(warms.string) + 1
        run.line(r"worker 1 passed step (\d+)", after=begun)
        run.line(r"worker 1 passed step (\d+)", after=len(run.lines))
        assert not any("of 2" in line for line in run.lines)
        (tmp_path / "ready-2").touch()
        run.line(r"worker 2 is rank 1 of 2 at step [1-9]\d*$")
        assert sum("warms up" in line for line in run.lines) == 2, "once in a process"


@pytest.mark.long
def test_a_newcomer_receives_into_memory_that_it_has_written_to_before(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--min-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts.script)]
    with running([*flags, sys.executable, str(SCRIPTS / "joins.py")], tmp_path) as run:
        run.line("worker 1 passed step 10")
        hosts.are("localhost:1", "127.0.0.2:1")
        run.line(r"worker 2 receives 5\d{7} bytes into ready memory")
        run.line(r"worker 2 is rank 1 of 2 at step [1-9]\d*$")
        run.line("worker 2 passed step")
        assert not any("worker 1 receives" in line or "new memory" in line for line in run.lines)
