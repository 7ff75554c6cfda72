"""Sets the clock of a process, as its Python reads it, by the seconds in the file CLOCK_OFFSET, whenever they change.

libfaketime cannot be used: it breaks sleeping on the monotonic clock, which it is to leave alone.
"""

import os
import time

_OFFSET = os.environ["CLOCK_OFFSET"]
_time = time.time


def _set_time() -> float:
    with open(_OFFSET) as offset:  # noqa: PTH123  no more than this is imported into each process
        return _time() + float(offset.read())


time.time = _set_time
