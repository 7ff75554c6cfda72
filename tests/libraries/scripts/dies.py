"""The loss of a worker: rank 1 is killed once, in the first attempt, after DIES_AFTER steps."""

from __future__ import annotations

import os
import signal

DIES_AFTER = 6


def after_step(step: int) -> None:
    """So many steps have been made."""
    if (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], step) == ("0", "1", DIES_AFTER):
        os.kill(os.getpid(), signal.SIGKILL)
