"""Arranges that this worker dies while a later round is being built: SECOND_DEATH="WHERE RANK", by its rank before."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import edriver
from edriver.worker.store import StoreClient

CALLS_OF_A_SYNC = ("broadcast", "isend", "recv")
"""What a sync may send and receive by."""


def arrange(state: edriver.TorchState) -> None:
    """To be called once this worker is in its first round."""
    where, _, rank = os.environ["SECOND_DEATH"].partition(" ")
    if edriver.rank() != int(rank):
        return
    if where == "connect":
        before(StoreClient, "connect")
    elif where == "mesh":
        after(StoreClient, "set")  # its address: the others know it, and nobody listens there
    else:
        during(state, where)
