"""A machine that is busy with other things, for tests of what may take longer then and must not fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many processes compute, each in a session of its own: the scheduler shares by session."""
    processes = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
