"""A training that is done at once, and a process that takes its time to end: AT_EXIT says how."""

import tests.torch_stand_ins  # noqa: F401  before torch

# isort: split
import atexit
import os
import time

import edriver

TIME = 4.0


def at_exit() -> None:
    """Registered before the first `run`, so called after our own hook."""
    begun = time.monotonic()
    match os.environ.get("AT_EXIT"):
        case "prints":
            while time.monotonic() < begun + TIME:
                print("uploading", flush=True)
                time.sleep(0.2)
        case "computes":
            while time.monotonic() < begun + TIME:
                pass
        case "hangs":
            time.sleep(3600)
    print("ended", flush=True)


atexit.register(at_exit)


@edriver.run
def train(state: edriver.ObjectState) -> None:
    state.commit()


train(edriver.ObjectState(step=0))
if "RAISE_AFTER" in os.environ:
    raise ValueError("the model cannot be saved")
