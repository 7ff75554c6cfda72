"""Says why a script starts again in each round: it finds none of its checkpoints, or it relies on edriver's state."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

import torch

logger = logging.getLogger("edriver.worker")

_SUSPICIOUS_ROUND: Final = 3
"""A script that has no checkpoint yet starts again in the second round as well."""

_speaks = False
"""Whether this process is rank 0 of the run's first round."""


def watch(round_number: int, rank: int) -> None:
    """Note the place, and have the first `torch.save` before any `torch.load` print a warning, from the third round on.

    To be called before the script imports these by name. One rank prints: 0.

    Args:
        round_number: which round of the run this is, from 1.
        rank: this worker's rank in it.
    """
    global _speaks
    _speaks = round_number == 1 and rank == 0
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


def say_no_state_is_kept(called: str) -> None:
    """Warn that restart mode keeps no state from round to round: once in a run, and nowhere else than in this mode.

    Args:
        called: what the script has called that would keep it in elastic mode.
    """
    if _speaks:
        logger.warning(
            "edriver: %s keeps no state, because this run is in restart mode: every round runs the script again, from "
            "the checkpoint that it loads itself or from its beginning. With --mode elastic, its processes continue "
            "from the last step. (Without --mode, edriver picks the mode from the script's own files; it does not look "
            "into installed packages.)",
            called,
        )
