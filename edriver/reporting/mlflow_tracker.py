"""MLflow. Its own variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...) hold, as without edriver."""

from __future__ import annotations

import os
import re
from collections import deque
from importlib import import_module
from typing import Any, Final

from edriver.reporting.entries import Entry
from edriver.reporting.tracker import config_of, summary_of
from edriver.v1 import status_pb2

RUN_TAG: Final = "edriver.run_id"
"""The tag by which a later driver finds the run: MLflow gives out its IDs itself."""

MAX_REMARKS: Final = 1000
"""Remarks in the run's artifact; the latest are kept."""

_MAX_PARAM_LENGTH: Final = 500
_STATUS: Final = {status_pb2.RUN_END_DONE: "FINISHED", status_pb2.RUN_END_STOPPED: "KILLED"}


class MlflowTracker:
    """See Tracker."""

    def __init__(self) -> None:
        self._mlflow = import_module("mlflow")
        self._entities = import_module("mlflow.entities")
        self._client: Any = None
        self._id = ""
        self._events = ""
        self._remarks: deque[str] = deque(maxlen=MAX_REMARKS)

    def begin(self, run: status_pb2.Run) -> str:
        """See Tracker."""
        if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & os.environ.keys():
            self._mlflow.set_experiment("edriver")
        self._client = self._mlflow.MlflowClient()
        found = self._mlflow.search_runs(
            filter_string=f"tags.`{RUN_TAG}` = '{run.run_id}'", output_format="list", max_results=1
        )
        name, tags = run.name or run.run_id, {**dict(run.tags), RUN_TAG: run.run_id}
        begun = self._mlflow.start_run(run_id=found[0].info.run_id if found else None, run_name=name, tags=tags)
        self._id = begun.info.run_id
        if not found:
            params = [
                self._entities.Param(f"edriver.{key}", str(value)[:_MAX_PARAM_LENGTH])
                for key, value in config_of(run).items()
            ]
            self._client.log_batch(self._id, params=params)
        folder = self._client.list_artifacts(self._id, "edriver")
        self._events = f"edriver/events-{len(folder) + 1}.txt"  # one for each driver of the run
        return f"run {self._id} at {self._mlflow.get_tracking_uri()}"

    def add(self, entry: Entry) -> None:
        """See Tracker. Remarks are an artifact of the run; the latest is a tag as well."""
        at = int(1000 * entry.time)
        metrics = [
            self._entities.Metric(re.sub(r"[^\w\-. :/]", "_", name), value, at, entry.step)
            for name, value in entry.values.items()
        ]
        tags = []
        if entry.text:
            self._remarks.append(f"step {entry.step}: {entry.text}")
            tags = [self._entities.RunTag("edriver.latest", self._remarks[-1])]
        self._client.log_batch(self._id, metrics=metrics, tags=tags)
        if tags and metrics:  # a round or an interruption
            self._write_remarks()

    def end(self, ended: status_pb2.RunEnded | None) -> None:
        """See Tracker."""
        self._write_remarks()
        if ended is not None:
            for name, value in summary_of(ended).items():
                self._client.set_tag(self._id, f"edriver.{name}", str(value))
        self._mlflow.end_run(_STATUS.get(ended.end, "FAILED") if ended is not None else "FAILED")

    def _write_remarks(self) -> None:
        self._client.log_text(self._id, "\n".join([*self._remarks, ""]), self._events)
