"""How many threads torch computes with: one where several workers share a host, as under torchrun."""

from __future__ import annotations

import os

import torch


def set_thread_count(local_size: int) -> None:
    """Use all of the host's processors where a worker is alone there, unless the user has set OMP_NUM_THREADS.

    The process was started with OMP_NUM_THREADS=1, before it was known how many share the host.
    """
    if local_size > 1 or os.environ.pop("EDRIVER_OMP_DEFAULT", None) is None:
        return
    del os.environ["OMP_NUM_THREADS"]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
