"""Says that a script begins anew in each round: it saves checkpoints, and finds none."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

import torch

logger = logging.getLogger("edriver.worker")

_SUSPICIOUS_ROUND: Final = 3
"""A script that has no checkpoint yet begins anew in the second round as well."""


def watch(round_number: int, rank: int) -> None:
    """Have the first `torch.save` before any `torch.load` print a warning, from the third round on, on rank 0.

    To be called before the script imports these by name.

    Args:
        round_number: which round of the run this is, from 1.
        rank: this worker's rank in it.
    """
    if round_number < _SUSPICIOUS_ROUND or rank != 0:
        return
    load, save = torch.load, torch.save
    settled: list[bool] = []

    @functools.wraps(load)
    def seen_load(*args: Any, **kwargs: Any) -> Any:
        settled.append(True)
        return load(*args, **kwargs)

    @functools.wraps(save)
    def seen_save(*args: Any, **kwargs: Any) -> None:
        if not settled:
            settled.append(True)
            logger.warning(
                "edriver: the script saves a checkpoint and has loaded none, in round %d of this run: does it begin "
                "from step 0 each time? A folder that is named by the date or a process is another one in each round. "
                'The run\'s id stays the same: os.environ["TORCHELASTIC_RUN_ID"]',
                round_number,
            )
        save(*args, **kwargs)

    torch.load = torch.serialization.load = seen_load
    torch.save = torch.serialization.save = seen_save
