"""Bytes that have arrived for a process, and that it has not read."""

from __future__ import annotations

import time
from pathlib import Path

TCP = Path("/proc/net/tcp")

BOUND = 60.0
"""Seconds that bytes may take to arrive."""


def unread_bytes(pid: int) -> list[int]:
    """Of each TCP connection (IPv4) of a process, the number of bytes; at least one connection is expected."""
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for row in TCP.read_text().splitlines()[1:]]  # proc_pid_net(5)
    return [int(row[4].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets]


def wait_for_more(pid: int, count: int) -> None:
    """Wait until more than so many bytes lie unread in one of the connections of a process, which is stopped."""
    deadline = time.monotonic() + BOUND
    while max(unread_bytes(pid)) <= count:
        assert time.monotonic() < deadline, "nothing arrives"
        time.sleep(0.001)
