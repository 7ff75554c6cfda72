"""py-spy, where it is installed: it reads where threads stand from a process's memory, so that one which is stopped, or
has not called edriver.run yet, need not answer.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import Final

SPY_BOUND: Final = 3.0
"""Seconds that it may take."""

_THREAD: Final = b"Thread "


async def dump(pid: int) -> str:
    """The stacks of a process's threads; empty if py-spy is missing or lacks permission.

    The process is not paused: if its activity makes the sample inconsistent, the result is empty, too.
    """
    program = shutil.which("py-spy")
    return "" if program is None else await asyncio.to_thread(_dump, program, pid)


def _dump(program: str, pid: int) -> str:
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        # Its exit code is not looked at: the agent reaps whatever exits.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SPY_BOUND, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if _THREAD in done.stdout else ""
