"""`torch.cuda.set_device(hvd.local_rank())` for a worker that sees one GPU: that of its slot, as `cuda:0`.

Horovod's processes see all GPUs of their host, and take the one of their local rank when they begin. Local ranks move
when workers come and go, while a process, and what it has on a device, stays: so here a process sees no GPU but its
own. Its number in the script can be the local rank of now or of any earlier round, or, in a worker that was started
later, one that it was not given yet: whichever it is, it means the one GPU that there is.

Numbers in other places are CUDA's error, with a hint. To show the process all of the host's GPUs, its own at the index
of its local rank, would serve those, too, and go wrong later and silently: local ranks move, a worker that joins has
none at `init`, and until `set_device` is called the current device would be another worker's. Besides, CUDA reads
CUDA_VISIBLE_DEVICES once, and scripts call `torch.cuda.is_available()` before `init`; and a GPU that is listed twice
hides them all. A TorchFunctionMode could rewrite the number in each call of torch's, and every call would pay for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from edriver.horovod import basics


def take_local_ranks(environ: Mapping[str, str]) -> None:
    """Where edriver has given this process one GPU, have torch.cuda.set_device take any number of a device for it.

    A script in restart mode sees all GPUs of its host, as under torchrun, and takes the one of its local rank.

    Args:
        environ: of this process.
    """
    world = basics.world()
    if world.takes_local_ranks or not has_one_gpu_of_its_slot(environ):
        return
    set_device = torch.cuda.set_device

    @functools.wraps(set_device)
    def set_own_device(device: Any) -> None:
        set_device(0 if _number(device) > 0 and torch.cuda.device_count() == 1 else device)

    torch.cuda.set_device = set_own_device
    world.takes_local_ranks = True


def has_one_gpu_of_its_slot(environ: Mapping[str, str]) -> bool:
    """Whether a process with this environment is a worker of an elastic run, whose agent has given it one GPU."""
    elastic = "EDRIVER_WORKER_ID" in environ and environ.get("EDRIVER_MODE") != "restart"
    return elastic and len([name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]) == 1


def _number(device: Any) -> int:
    """The number of a device, in whatever form the device is given; -1 if it has no number."""
    if isinstance(device, str):
        device = torch.device(device)
    number = device.index if isinstance(device, torch.device) and device.type == "cuda" else device
    return number if isinstance(number, int) else -1
