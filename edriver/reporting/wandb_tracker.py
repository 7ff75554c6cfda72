"""Weights & Biases. Its own variables (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, ...) hold, as without edriver."""

from __future__ import annotations

import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

from edriver.reporting.entries import OWN_NAMES, Entry
from edriver.reporting.tracker import config_of, summary_of
from edriver.v1 import status_pb2

STEP = f"{OWN_NAMES}step"


class WandbTracker:
    """See Tracker."""

    def __init__(self) -> None:
        self._wandb = import_module("wandb")
        self._run: Any = None

    def begin(self, run: status_pb2.Run) -> str:
        """See Tracker. Charts are over the step, which may go back: a failure leads back to an earlier one."""
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "edriver",
            id=run.run_id,
            resume="allow",
            name=os.environ.get("WANDB_NAME") or run.name or run.run_id,
            tags=[f"{name}={value}"[:64] for name, value in sorted(run.tags.items())],  # W&B's limit
            config={"edriver": config_of(run)},
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)
        if self._run.offline:
            return f"offline; to upload it: wandb sync {shlex.quote(str(Path(self._run.dir).parent))}"
        return str(self._run.url)

    def add(self, entry: Entry) -> None:
        """See Tracker. Remarks are lines of the run's Logs: W&B keeps what its process prints."""
        if entry.values:
            self._run.log({**entry.values, STEP: entry.step})
        if entry.text:
            print(f"step {entry.step}: {entry.text}", flush=True)  # noqa: T201

    def end(self, ended: status_pb2.RunEnded | None) -> None:
        """See Tracker."""
        if ended is not None:
            self._run.summary.update({f"{OWN_NAMES}{name}": value for name, value in summary_of(ended).items()})
        done = ended is not None and ended.end == status_pb2.RUN_END_DONE
        self._run.finish(exit_code=0 if done else 1)
