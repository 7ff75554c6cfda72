"""Bytes that have arrived for a process, and that it has not read."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import until

TCP = Path("/proc/net/tcp")


def unread_bytes(pid: int) -> list[int]:
    """Of each TCP connection (IPv4) of a process, the number of bytes; at least one connection is expected."""
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for row in TCP.read_text().splitlines()[1:]]  # proc_pid_net(5)
    return [int(row[4].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets]


def wait_for_more(pid: int, count: int) -> None:
    """Wait until more than so many bytes lie unread in one of the connections of a process, which is stopped."""
    until(lambda: max(unread_bytes(pid)) > count, f"more than {count} bytes lie unread", every=0.001)
