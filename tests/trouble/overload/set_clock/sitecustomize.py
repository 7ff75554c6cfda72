"""Sets the clock of a process, as edriver's code reads it, by the seconds in the file CLOCK_OFFSET.

That of all of Python would not do, as gRPC compares what it reads there with what it reads in C. Nor does libfaketime:
it breaks sleeping on the monotonic clock, which it is to leave alone.
"""

import os
import sys
import time

_OFFSET = os.environ["CLOCK_OFFSET"]
_time = time.time


def _set_time() -> float:
    now = _time()
    if not sys._getframe(1).f_globals.get("__name__", "").startswith("edriver."):
        return now
    with open(_OFFSET) as offset:  # noqa: PTH123  no more than this is imported into each process
        return now + float(offset.read())


time.time = _set_time
