"""What a failure that many scripts meet is due to, and the way out, in a sentence. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

from edriver.driver.core.actions import Failure
from edriver.driver.core.cause import Exit


@dataclass(frozen=True, slots=True)
class _Hint:
    """Attributes:
    pattern: what is found in the exception, or in the last lines of output.
    text: the sentence.
    signal: a signal that says the same.
    elastic_only: whether it is true of elastic mode alone.
    """

    pattern: re.Pattern[str]
    text: str
    signal: signal.Signals | None = None
    elastic_only: bool = False


_HINTS: Final = (
    _Hint(
        re.compile(
            r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
            r"|KeyError: '(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
        ),
        "the script asks for RANK and the like, which elastic mode does not set. A script that never calls edriver.run "
        "needs restart mode: give --mode restart, and name the script in the command, as in `python train.py`",
        elastic_only=True,
    ),
    _Hint(
        re.compile(
            r"out of shared memory|is killed by signal: Bus error|unable to allocate shared memory\(shm\)"
            r"|unable to (open shared memory object|write to file|mmap \d+ bytes from file) </torch_"
            r"|/dev/shm.*(No space left on device|size \d+)|No space left on device.*/dev/shm"
        ),
        "as a rule this means that shared memory (/dev/shm) is full, through which a data loader's processes pass "
        "batches. Make it larger (`docker run --shm-size 8g`; in Kubernetes an emptyDir of medium Memory mounted at "
        "/dev/shm), or have fewer of these processes (num_workers)",
        signal=signal.SIGBUS,
    ),
    _Hint(
        re.compile(r"^bdb\.BdbQuit$", re.MULTILINE),
        "breakpoint() and pdb read from a terminal, and a worker has none. Debug the script without edriver, as one "
        "process, or attach a debugger (debugpy, py-spy); `edriver stack` shows where each worker stands",
    ),
)


def hint_of(failure: Failure, *, elastic: bool) -> str | None:
    """A sentence on a failure; None: nothing is known of its kind.

    Args:
        failure: the failure.
        elastic: whether the run is in elastic mode.
    """
    text = f"{failure.traceback}\n{failure.tail}"
    code = failure.cause.detail.code if isinstance(failure.cause.detail, Exit) else 0
    for hint in _HINTS:
        by_signal = hint.signal is not None and code in (-hint.signal, 128 + hint.signal)
        if (by_signal or hint.pattern.search(text)) and (elastic or not hint.elastic_only):
            return hint.text
    return None
