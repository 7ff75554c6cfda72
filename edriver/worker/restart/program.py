"""Running a program that is no Python script: a shell script, a binary.

It is a child of the worker's process, in its process group. So it gets the group's SIGTERM itself; the worker's process
outlives that, because the group is killed when that ends.

The worker's process takes its place in the round as any other, serves the store, and ends as the program does: with its
exit code, or by its signal. After a failure it waits 2 s, as a script does that has lost a peer.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from edriver.text.start_failure import start_failure

_SHELLS_CODE: Final[Mapping[type[OSError], int]] = {FileNotFoundError: 127}
_CANNOT_BE_RUN: Final = 126
"""Exit codes of a shell for a program that does not exist, or cannot be run."""


class Ending(NamedTuple):
    """How a program has ended.

    Attributes:
        code: its exit code; negative: the signal that ended it.
        stopped: whether it had been told to end by then.
    """

    code: int
    stopped: bool


def run_program(words: Sequence[str]) -> Ending:
    """Run it to its end. SIGTERM is left to it meanwhile."""
    told: list[int] = []
    # A function and no SIG_IGN, which the program would inherit.
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        code = subprocess.Popen(words).wait()
    except OSError as error:
        reason = start_failure(words[0], error, "a program on this host")
        sys.stderr.write(f"edriver: {words[0]!r}: {reason}\n")
        code = _SHELLS_CODE.get(type(error), _CANNOT_BE_RUN)
    finally:
        signal.signal(signal.SIGTERM, before)
    return Ending(code, bool(told))


def end_with(code: int) -> NoReturn:
    """End this process as a program has ended, so that the report of the run says so."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its own core, if enabled
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code > 0 else 128 - code)
