"""The end of a process whose script has failed: its exit handlers run, and then it ends at once.

All others of the round have been stopped by then, and the next round waits for this process. What the interpreter would
still do, taking down each module of torch, takes seconds on a busy host, to no one's benefit.
"""

from __future__ import annotations

import atexit
import os
import sys

from edriver.worker.watch.forked import CreatorProcess


class QuickEnd:
    """Ends the process after all exit hooks that are registered later, which run before: hooks run last come, first.

    Attributes:
        code: the exit code of a script that has failed; None: the process ends as usual.
    """

    def __init__(self) -> None:
        """Register the hook."""
        self.code: int | None = None
        self._owner = CreatorProcess()
        atexit.register(self._end)

    def _end(self) -> None:
        if self.code is not None and self._owner.is_here:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(self.code)
