"""Whether a process runs, as the kernel sees it: what needs no answer of its interpreter.

One that is stopped (SIGSTOP, Ctrl-Z, a debugger) or frozen (a container that is paused) does nothing and hears nothing.
One that only does not answer may be in a long call of native code that keeps the interpreter's lock: it lives.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from edriver.model.cause import Halt
from edriver.system.cgroups import CGROUP_ROOT, cgroup_folders
from edriver.system.proc_stat import PROC_ROOT, STATE_FIELD, kernel_text, stat_fields

_STOPPED_STATES: Final = {"T": Halt.STOPPED, "t": Halt.TRACED}
"""Of proc(5), /proc/PID/stat."""


def halt_of_process(pid: int, proc: Path = PROC_ROOT, cgroups: Path = CGROUP_ROOT) -> Halt | None:
    """What keeps a process from running; None: nothing does, or it has ended, which its exit tells.

    Args:
        pid: the process.
        proc: where proc(5) is mounted,
        cgroups: and cgroups(7), version 2.
    """
    process = f"{proc}/{pid}"  # of every worker, once a second: to make a Path costs more than to read its file
    with suppress(OSError, IndexError):
        if halt := _STOPPED_STATES.get(stat_fields(f"{process}/stat")[STATE_FIELD]):
            return halt
        lowest = next(iter(cgroup_folders(kernel_text(f"{process}/cgroup"), cgroups, "")), cgroups)
        return Halt.FROZEN if "frozen 1" in kernel_text(f"{lowest}/cgroup.events") else None
    return None
