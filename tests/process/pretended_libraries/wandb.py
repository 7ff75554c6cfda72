"""Stands for Weights & Biases' package: each call is a line of JSON in the file that WANDB_CALLS names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def _note(call: str, **what: Any) -> None:
    with Path(os.environ["WANDB_CALLS"]).open("a") as file:
        file.write(f"{json.dumps({'call': call, 'pid': os.getpid(), **what})}\n")


class Summary:
    """A run's summary."""

    def update(self, values: dict[str, Any]) -> None:
        """Note it."""
        _note("summary", values=values)


class Run:
    """A run."""

    offline = False
    url = "https://wandb.test/runs/1"
    summary = Summary()

    def define_metric(self, name: str, **how: Any) -> None:
        """Note it."""
        _note("define_metric", name=name, **how)

    def log(self, values: dict[str, Any]) -> None:
        """Note it."""
        _note("log", values=values)

    def finish(self, exit_code: int) -> None:
        """Note it."""
        _note("finish", exit_code=exit_code)


def init(**settings: Any) -> Run:
    """Note it."""
    if "WANDB_BROKEN" in os.environ:
        raise ConnectionError("the server does not answer")
    _note("init", **settings)
    return Run()
