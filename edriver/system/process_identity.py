"""Names of machines and of processes that no other has, so that a file can say which process it belongs to."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from edriver.system.proc_stat import START_FIELD, STATE_FIELD, stat_fields


def this_machine() -> str:
    """Names this machine since its start, and the processes that can be seen from here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"


def process_name(process: int) -> str:
    """Names a process that lives as no other of this machine: by its id, and the time of its start (proc(5), stat).

    Returns:
        the name; empty: it has ended, though its parent may not know it yet.
    """
    with contextlib.suppress(OSError, IndexError):
        fields = stat_fields(Path(f"/proc/{process}/stat"))
        if fields[STATE_FIELD] not in "ZX":
            return f"{process} {fields[START_FIELD]}"
    return ""


def process_lives(name: str) -> bool:
    """Whether the process of this machine with this name lives."""
    process = name.partition(" ")[0]
    return process.isdecimal() and process_name(int(process)) == name
