"""`--report-to wandb,mlflow`: a run in the experiment trackers that a user has.

For each library the driver starts one process of this package (`__main__.py`), which watches the run as any client
does, and in which alone the library is imported. So it costs neither workers nor driver anything, and no loss of a
worker ends its run there: whichever process is rank 0, the driver knows what rank 0 reports. entries.py makes of what
the driver sends what is to be logged, pure; wandb_tracker.py and mlflow_tracker.py log it.
"""

from __future__ import annotations

from typing import Final

LIBRARIES: Final = ("wandb", "mlflow")
"""The packages that --report-to may name."""
