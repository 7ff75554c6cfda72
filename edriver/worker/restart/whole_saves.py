"""Checkpoints that are whole though the round ends while they are written.

A script in restart mode is stopped wherever it is, by SIGTERM and 30 s later by SIGKILL. One that does not handle
SIGTERM would leave a half-written file, which is what it then loads: so its end waits for `torch.save` to return. What
writes otherwise has to write to a temporary name and rename it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


def end_after_save() -> None:
    """Have SIGTERM wait for a `torch.save` of the main thread. To be called before the script imports it by name."""
    save: Callable[..., None] = torch.save

    @functools.wraps(save)
    def save_whole(*args: Any, **kwargs: Any) -> None:
        with _sigterm_later():
            save(*args, **kwargs)

    torch.save = torch.serialization.save = save_whole


@contextlib.contextmanager
def _sigterm_later() -> Iterator[None]:
    """Where the script leaves SIGTERM to its default, it ends the process at the end of this block."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if asked:
            os.kill(os.getpid(), signal.SIGTERM)
