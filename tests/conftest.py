"""For all tests: signals as a shell starts a program with, also where the tests themselves are run by nohup."""

from __future__ import annotations

import signal

for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # A child would inherit that it is ignored, and the driver leaves what is ignored at its start alone.
        signal.signal(_number, signal.SIG_DFL)
