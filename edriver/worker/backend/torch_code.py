"""Whether a thread is in torch's own Python code, and what of it is slow to import. Checked with torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from torch.utils.data import _utils, get_worker_info

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


def loads_data(filename: str) -> bool:
    """Whether a function that was read from this file is one of torch's that reads data (torch/utils/data).

    Interface: that the DataLoader's iterators, and what they call in the training process, lie in that package. If they
    move, the time that a worker waits for data is shown as time in which it computes.
    """
    return "/torch/utils/data/" in filename


def import_dynamo() -> None:
    """Import what the first optimizer step of a process would, which takes a second.

    Interface: the module torch._dynamo. Without it the first round of a newcomer takes so much longer.
    """
    with contextlib.suppress(ImportError), without_collections():
        importlib.import_module("torch._dynamo")


@contextlib.contextmanager
def without_worker_info() -> Iterator[None]:
    """Have torch.utils.data.get_worker_info() answer None in a DataLoader's process.

    Readers that shard what they read by it (datasets.IterableDataset, webdataset) would pass over samples of a shard
    that is meant for this process alone.

    Interface: torch.utils.data._utils.worker._worker_info.

    Raises:
        RuntimeError: torch keeps the answer elsewhere.
    """
    info = get_worker_info()
    if info is None:
        yield
        return
    _utils.worker._worker_info = None
    try:
        if get_worker_info() is not None:
            raise RuntimeError(
                "with this version of torch, get_worker_info() cannot be hidden from a reader that would shard by it: "
                "use num_workers=0"
            )
        yield
    finally:
        _utils.worker._worker_info = info
