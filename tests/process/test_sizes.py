"""A size with which the script cannot train, in real processes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.process.running import SCRIPTS, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def test_workers_survive_a_size_with_which_their_script_fails(tmp_path: Path) -> None:
    discovery, hosts = tmp_path / "discovery.sh", tmp_path / "hosts"
    discovery.write_text(f"#!/bin/sh\ncat {shlex.quote(str(hosts))}\n")
    discovery.chmod(0o755)
    hosts.write_text("localhost:2\n")
    flags = ["-np", "2", "--max-np", "4", "--reset-limit", "0", "--host-discovery-script", str(discovery)]
    with running([*flags, *TRAIN], tmp_path, {"EPOCHS": "2000", "BAD_SIZE": "3"}) as run:
        run.line(r"rank 1 passed step 5$")
        run.line(r"rank 0 passed step 5$")
        pids = run.pids()
        added = tmp_path / "hosts.new"
        added.write_text("localhost:2\n127.0.0.2:1\n")
        added.replace(hosts)
        run.line(r"^edriver: the script raised AssertionError .* with 3 workers, where 2 have trained: .* --max-np 2")
        after = len(run.lines)
        run.line(r"rank 0 of 2 pid \d+ at step", after)
        run.line(r"rank 1 of 2 pid \d+ at step", after)
        assert sorted(run.pids().values()) == sorted(pids.values())
