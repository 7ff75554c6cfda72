"""What the ranks of a DisturbedRun (chaos.py) write down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import edriver
from edriver.worker.state.object_state import ObjectState


def notebook(folder: Path, state: ObjectState) -> Callable[..., None]:
    """Open this process's file in a folder.

    Args:
        folder: of all of them.
        state: has `step`.

    Returns:
        a function that adds a line: what happens, and more by name.
    """
    log = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def note(what: str, **more: object) -> None:
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        place = {"rank": edriver.rank(), "size": edriver.size(), "pid": os.getpid(), "step": state.step}
        print(json.dumps({"what": what, "at": now, **place, **more}), file=log)

    return note
