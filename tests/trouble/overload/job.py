"""A job without torch. It trains up to the step in FOLDER/end; worker 1 prints FLOOD bytes a second, if that is set."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import edriver

FOLDER = Path(os.environ["FOLDER"])
PAUSE = 0.05
LINE = b"x" * 127 + b"\n"


def flood(bytes_per_second: float) -> None:
    """Print for ever."""
    portion, began, written = LINE * 8000, time.monotonic(), 0
    while True:
        written += os.write(1, portion)
        time.sleep(max(0.0, written / bytes_per_second - (time.monotonic() - began)))


state = edriver.ObjectState(step=0, ends=False)


@edriver.run
def train(state: edriver.ObjectState) -> None:
    """Make steps."""
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    while not state.ends:
        time.sleep(PAUSE)
        state.step += 1
        if edriver.rank() == 0:
            with (FOLDER / "steps").open("a") as steps:
                steps.write(f"{state.step} {time.monotonic():.3f}\n")
        state.ends = all_see_the_end()
        state.commit()


def all_see_the_end() -> bool:
    """Whether to end after this step: the same on all ranks, which look at different moments."""
    try:
        last = int((FOLDER / "end").read_text())
    except FileNotFoundError:
        return False
    return bool(state.step >= last)


if os.environ.get("FLOOD") and os.environ["EDRIVER_WORKER_ID"] == "1":
    threading.Thread(target=flood, args=[float(os.environ["FLOOD"])], daemon=True).start()
train(state)
