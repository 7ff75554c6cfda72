"""`--report-to wandb,mlflow` with the libraries themselves, offline."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, running

pytestmark = [
    pytest.mark.libraries,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]  # MLflow has deprecation warnings


def test_a_run_is_in_both(tmp_path: Path) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    environ = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": uri,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "EPOCHS": "2",
    }
    command = [sys.executable, str(SCRIPTS / "train.py")]
    with running(["-np", "2", "--report-to", "wandb,mlflow", *command], tmp_path, environ) as run:
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()
        run.line("edriver: wandb: offline; to upload it: wandb sync ")
        assert not [line for line in run.lines if "no longer reported" in line]
    (folder,) = tmp_path.glob(f"wandb/offline-run-*-{run.id}")
    assert b"edriver/workers" in (folder / f"run-{run.id}.wandb").read_bytes()
    assert "round 1.1: 2 workers" in (folder / "files" / "output.log").read_text()
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("edriver")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["edriver.run_id"] == run.id
    assert found.data.metrics["edriver/workers"] == 2
    assert found.data.metrics["loss"] > 0
    losses = client.get_metric_history(found.info.run_id, "loss")
    assert [each.step for each in losses] == sorted(each.step for each in losses)
