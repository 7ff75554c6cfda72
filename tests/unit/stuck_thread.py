"""A thread that a test keeps where it wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable


def thread_in(filename: str, source: str) -> tuple[threading.Thread, Callable[[], None]]:
    """A thread whose innermost frame is code of this file; and how to end it."""
    lock, go, started = threading.Lock(), [True], threading.Event()
    lock.acquire()
    code = compile(f"started.set()\n{source}", filename, "exec")
    names = {"lock": lock, "go": go, "started": started}
    thread = threading.Thread(target=lambda: exec(code, names), daemon=True)
    thread.start()
    assert started.wait(20)

    def end() -> None:
        go.clear()
        lock.release()
        thread.join(20)

    return thread, end
