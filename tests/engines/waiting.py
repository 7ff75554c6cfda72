"""How tests wait for what an engine does: it announces nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.process.running import BOUND


def eventually(holds: Callable[[], object], bound: float = BOUND) -> bool:
    """Look until it holds; False if it does not within so many seconds."""
    deadline = time.monotonic() + bound
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
