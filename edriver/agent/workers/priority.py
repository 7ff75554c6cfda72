"""Which of a host's processes get the processor first: members that train, before workers that boot or have ended.

A worker that boots uses a core for seconds, and one that has ended uses one for tens of milliseconds while the kernel
gives its memory back; both while others want to take a step. Every worker has its own session, so where the kernel
schedules by session (sched(7), "The autogroup feature") its niceness is the session's. That may be lowered and raised
again without privileges. Elsewhere, and in separate control groups, this does nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

import tenacity

logger = logging.getLogger("edriver.agent")

ENDED_NICENESS = 19
"""The niceness of processes that have ended: they get only idle processor time."""

BOOT_NICENESS = 5
"""The niceness of what boots: a third of a trainer's share where both want a core, so that it is ready in good time
even where data loaders use all of them."""

DEFAULT_NICENESS = 0

_WRITE_RETRIES = tenacity.Retrying(
    # The kernel takes one change in 100 ms from unprivileged processes, all of them together.
    wait=tenacity.wait_fixed(0.1),
    stop=tenacity.stop_after_attempt(50),
    retry=tenacity.retry_if_exception_type(BlockingIOError),
    reraise=True,
)


def lower(pid: int, niceness: int) -> bool:
    """Let others go before this process's session; whether that was possible."""
    try:
        _write(pid, niceness)
    except OSError:
        return False
    return True


def restore(pid: int) -> None:
    """Undo `lower`. May take 5 s where many others do the same, so not on an event loop."""
    try:
        _WRITE_RETRIES(_write, pid, DEFAULT_NICENESS)
    except ProcessLookupError:
        pass
    except OSError as error:
        logger.warning("process %d stays in the background: %s", pid, error.strerror)


def _write(pid: int, niceness: int) -> None:
    Path(f"/proc/{pid}/autogroup").write_text(f"{niceness}\n")
