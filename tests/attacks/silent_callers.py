"""Callers from another host that connect to a port and send nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.linked_hosts import LinkedHost
from tests.process.running import BOUND, ROOT
from tests.process.sites import environment_of

LISTENING = "0A"


def ports(pid: int) -> set[int]:
    """The TCP ports at which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENING and row[9] in inodes}


@contextlib.contextmanager
def strangers(source: LinkedHost, pid: int, count: int, churn: float = 0.0) -> Iterator[None]:
    """So many silent callers at each port of a worker, from another host, which has no part in the run."""
    address = environment_of(pid)["EDRIVER_STORE"]
    wheres = [f"{address}:{port}" for port in ports(pid)]
    assert len(wheres) == 2, "the store's port and that of the round's group"
    with callers(source, wheres, count, churn):
        yield


@contextlib.contextmanager
def callers(source: LinkedHost, wheres: list[str], count: int, churn: float = 0.0) -> Iterator[None]:
    """So many silent callers at each of these addresses with their ports."""
    command = [sys.executable, "-m", "tests.attacks.idle_callers", str(count), str(churn), *wheres]
    attack = subprocess.Popen(
        ["ip", "netns", "exec", source.namespace, *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert attack.stdin is not None
    assert attack.stdout is not None
    with attack.stdin, attack.stdout:
        try:
            assert attack.stdout.readline() == "all are there\n"
            if churn:
                assert attack.stdout.readline() == "all are there again\n"
            yield
        finally:
            attack.kill()
            attack.wait(BOUND)
