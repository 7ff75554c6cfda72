"""How far a Trainer has got, as a part of edriver's state, and how many steps are left of its run.

This file imports nothing of transformers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from edriver.worker.state.handlers import StateHandler, register_handler


class TrainerProgress:
    """The state that a Trainer continues from, besides its model, its optimizer and its sampler.

    Attributes:
        values: small plain data, replaced as a whole and never changed in place; empty until the first step is done.
        log_history: the list object of TrainerState; entries are only appended.
    """

    def __init__(self) -> None:
        self.values: Mapping[str, Any] = {}
        self.log_history: list[Any] = []


class ProgressHandler(StateHandler):
    """A Progress: a boundary keeps the log's length instead of the log, which grows without limit."""

    value: TrainerProgress

    def capture(self) -> Any:
        """The complete state."""
        return {"values": self.value.values, "log_history": self.value.log_history}

    def load(self, tree: Any) -> None:
        """Take over copies."""
        self.value.values = copy.deepcopy(tree["values"])
        self.value.log_history[:] = copy.deepcopy(tree["log_history"])

    def keep(self) -> Any:
        """The values, and how many entries the log has."""
        return {"values": self.value.values, "entries": len(self.value.log_history)}

    def bring_back(self, kept: Any) -> None:
        """Drop what has been logged since."""
        self.value.values = copy.deepcopy(kept["values"])
        del self.value.log_history[kept["entries"] :]

    def digest(self, tree: Any) -> object:
        """The steps done; measured times, which are in the log, differ between workers."""
        return tree["values"].get("global_step", 0)


register_handler(TrainerProgress, ProgressHandler)


def planned(
    global_step: int,
    epoch: int,
    rest: int,
    full: int,
    max_steps: int,
    num_train_epochs: float,
) -> tuple[int, int]:
    """Compute where the run ends with a round's workers.

    Args:
        global_step: the number of optimizer steps done.
        epoch: the current epoch, from 0.
        rest: the number of steps left in it with this round's workers.
        full: the number of steps of a whole epoch with this round's workers.
        max_steps: as in TrainingArguments; below 1 the epochs decide.
        num_train_epochs: as in TrainingArguments.

    Returns:
        The total number of epochs begun, and the total number of steps.
    """
    if max_steps > 0:
        later = max(0, max_steps - global_step - rest)
        return epoch + 1 + math.ceil(later / max(1, full)), max_steps
    left = rest + math.ceil(num_train_epochs * full) - (epoch + 1) * full
    return math.ceil(num_train_epochs), global_step + max(0, left)
