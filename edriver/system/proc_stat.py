"""Files that the kernel makes up as they are read, below /proc and /sys; the fields of `stat`, see proc(5).

What names a machine and a process as no other, so that a file can say whose it is, is here, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path
from typing import Final

PROC_ROOT: Final = Path("/proc")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

STATE_FIELD: Final = 0
"""Place of the state: R runs, S and D sleep, T and t are stopped, Z has exited."""

PARENT_FIELD: Final = 1
"""Place of the parent's process id."""

SESSION_FIELD: Final = 3
"""Place of the session's id."""

FLAGS_FIELD: Final = 6
"""Place of the kernel's flags of the process, PF_EXITING among them."""

PF_EXITING: Final = 0x4
"""The flag of a process that is exiting, or has exited and has not been reaped (include/linux/sched.h)."""

OWN_TIME_FIELDS: Final = (11, 12)
"""Places of the processor time that it has used, in ticks: in its own code, and in the kernel's."""

REAPED_TIME_FIELDS: Final = (13, 14)
"""Places of the same of its children that it has waited for."""

START_FIELD: Final = 19
"""Place of the time at which it was started, in ticks since the machine was."""

RESIDENT_FIELD: Final = 21
"""Place of the number of its pages in memory."""

READ_BYTES: Final = 64 * 1024


def kernel_text(file: Path | str) -> str:
    """The whole text of such a file. Path.read_text makes twice as many calls, and takes twice as long.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, READ_BYTES):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def stat_fields(stat: Path | str) -> list[str]:
    """The fields that follow the command.

    Args:
        stat: the file, /proc/PID/stat or /proc/PID/task/TID/stat.

    Raises:
        OSError: the process or thread has ended.
    """
    return fields_of(kernel_text(stat))


def ticks(fields: list[str], places: tuple[int, ...]) -> int:
    """Processor time: the sum of the fields at these places, OWN_TIME_FIELDS for example."""
    return sum(int(fields[place]) for place in places)


def fields_of(text: str) -> list[str]:
    """The fields that follow the command, in the text of such a file; the command may hold spaces and parentheses."""
    return text.rpartition(")")[2].split()


def this_machine() -> str:
    """Names this machine since its start, and the processes that can be seen from here."""
    boot = _BOOT_ID.read_text().strip()
    return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"


def own_processors() -> str:
    """Names the processors that this process may use, and their machine since its start: the same in all containers and
    network namespaces that share them.

    Returns:
        a digest; empty: the machine cannot be told.
    """
    try:
        boot = _BOOT_ID.read_bytes()
    except OSError:
        return ""
    usable = sorted(os.sched_getaffinity(0))
    return hashlib.blake2b(boot + str(usable).encode(), digest_size=16).hexdigest()


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
