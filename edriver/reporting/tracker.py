"""What a library has to do for a run."""

from __future__ import annotations

from typing import Any, Protocol

from edriver.reporting.entries import Entry
from edriver.text.cause_names import RUN_END_NAMES
from edriver.v1 import status_pb2


class Tracker(Protocol):
    """Logs one run of edriver's as one run of a library's, which bears the same ID; whatever it raises ends it."""

    def begin(self, run: status_pb2.Run) -> str:
        """Begin the library's run, or go on with it if a driver before this one has begun it; returns where it is."""

    def add(self, entry: Entry) -> None:
        """Log this."""

    def end(self, ended: status_pb2.RunEnded | None) -> None:
        """Wait until all is written; None: how the run has ended is not known."""


def config_of(run: status_pb2.Run) -> dict[str, Any]:
    """What a run was started with, by name."""
    limits = {"np": run.np, "min_np": run.min_np, "max_np": run.max_np}
    return {"command": " ".join(run.command), **limits, "version": run.version, "run_id": run.run_id}


def summary_of(ended: status_pb2.RunEnded) -> dict[str, Any]:
    """How a run has ended, by name."""
    counts = {name: getattr(ended, name) for name in ("rounds", "failures", "preemptions", "resizes")}
    return {"end": RUN_END_NAMES[ended.end], **counts}
