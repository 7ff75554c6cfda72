"""The first step of a process, taken by a standby with a tiny model, so that the script's first step is its second."""

from __future__ import annotations

import logging
import sys

import torch
import torch.distributed as dist

from edriver.worker.backend import torch_code
from edriver.worker.backend.heap import grow_heap
from edriver.worker.group.warm_up import tiny_step

logger = logging.getLogger("edriver.worker")


def take_first_step() -> None:
    """Make a group of this process alone, take a step in it, and destroy it. The script's random numbers do not move.

    What torch imports and starts only then is there afterwards; the group's numbers start again with the script's own.
    """
    torch_code.import_dynamo()
    hook = sys.excepthook
    try:
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        with torch.random.fork_rng(devices=[]):
            tiny_step()
    except Exception as error:  # noqa: BLE001  nothing that comes of it may cost the run
        logger.debug("no warm-up step was taken: %s", error)  # a script that has no use for Gloo may still run
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = hook  # else the script's tracebacks have this group's rank before the script's own
    grow_heap()
