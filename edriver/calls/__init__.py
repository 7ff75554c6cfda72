"""`edriver.launch`: a function is called in every worker of a run, and what it returns comes back.

launch.py is the caller's side, which starts a driver; parcels.py is how call and results travel; the worker's side is
edriver/worker/called.py. notebook.py shows the progress in a notebook. worker_process.py tells a worker from the
processes that its script starts, which make no call.
"""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "edriver.worker.called"
"""The module that a worker runs as its script."""

PROGRESS_VARIABLE: Final = "EDRIVER_CALL_PROGRESS"
"""The variable that has a driver print its progress each second, for a caller that replaces the line before."""

PROGRESS_MARK: Final = "\x1e"
"""How such a line begins. No other does: the driver puts something before all that workers, and itself, print."""
