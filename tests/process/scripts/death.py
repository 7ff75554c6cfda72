"""Arranges that this worker dies while a round begins, at a place that a test chooses."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch.distributed as dist

import edriver
from edriver.worker.group.store import StoreClient


def arrange(variable: str) -> None:
    """Die where the variable says, if it names this worker: "PLACE WORKER_ID".

    The places: "connect", before it asks rank 0's store for anything; "mesh", when the others know where it listens
    and it has not connected to them; "sync", when it has sent or received a part of the state.
    """
    place, _, worker = os.environ.get(variable, "").partition(" ")
    if not place or worker != os.environ["EDRIVER_WORKER_ID"]:
        return
    if place == "connect":
        _die_at(StoreClient, "connect", call=1)
    elif place == "mesh":
        _die_at(StoreClient, "multi_get", call=1)  # it has set its own address, and asks for the others'
    else:
        sync = edriver.TorchState.sync

        def sync_and_die(state: edriver.TorchState) -> bool:
            for name in ("isend", "irecv"):
                _die_at(dist, name, call=2)
            return sync(state)

        setattr(edriver.TorchState, "sync", sync_and_die)  # noqa: B010


def _die_at(owner: Any, name: str, call: int) -> None:
    function = getattr(owner, name)
    calls = 0

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(owner, name, counting)
