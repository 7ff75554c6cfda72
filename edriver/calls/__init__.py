"""`edriver.launch`: a function is called in every worker of a run, and what it returns comes back.

launch.py is the caller's side, which starts a driver; parcels.py is how call and results travel; the worker's side is
edriver/worker/called.py. worker_process.py tells a worker from the processes that its script starts, which make none.
"""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "edriver.worker.called"
"""The module that a worker runs as its script."""
