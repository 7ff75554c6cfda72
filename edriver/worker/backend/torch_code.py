"""Where in torch's own Python code a thread stands, and what of it is slow to import. Checked with torch 2.13.0."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import PurePath
from typing import Final

from edriver.worker.backend.interpreter import without_collections

_WAITING_PACKAGES: Final = ("distributed", "autograd", "nn", "cuda")


def waits_for_peers(filename: str) -> bool:
    """Whether a function that was read from this file is one of torch's that may wait for other ranks.

    Interface: in which packages of torch these functions are (torch/distributed, autograd, nn, cuda), and that the
    innermost Python frame of a thread that waits in C++ is one of them. If they move, a thread that hangs in a
    collective of an aborted round is not recognised as stuck: its worker is not replaced, and the collective ends with
    the group's own timeout. A worker that waits for others would count as stalled itself after --stall-timeout.
    """
    parts = PurePath(filename).parts
    return "torch" in parts and not set(_WAITING_PACKAGES).isdisjoint(parts)


def import_dynamo() -> None:
    """Import what the first optimizer step of a process would, which takes a second.

    Interface: the module torch._dynamo. Without it the first round of a newcomer takes so much longer.
    """
    with contextlib.suppress(ImportError), without_collections():
        importlib.import_module("torch._dynamo")
