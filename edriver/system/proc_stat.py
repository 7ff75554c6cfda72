"""What proc(5) says of a process or a thread in its file `stat`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STATE_FIELD: Final = 0
"""Place of the state: R runs, S and D sleep, T and t are stopped, Z has exited."""

PARENT_FIELD: Final = 1
"""Place of the parent's process id."""

USER_TIME_FIELD, SYSTEM_TIME_FIELD = 11, 12
"""Places of the processor time used, in ticks."""


def stat_fields(stat: Path) -> list[str]:
    """The fields that follow the command.

    Args:
        stat: the file, /proc/PID/stat or /proc/PID/task/TID/stat.

    Raises:
        OSError: the process or thread is gone.
    """
    return fields_of(stat.read_text(errors="replace"))


def fields_of(text: str) -> list[str]:
    """The fields that follow the command, in the text of such a file; the command may hold spaces and parentheses."""
    return text.rpartition(")")[2].split()
