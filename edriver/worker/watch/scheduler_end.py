"""A learning-rate scheduler that was made for fewer steps than a run makes once its size has changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edriver.model.plan import Assignment
from edriver.text.phrases import count_text


def name_the_resize(error: Exception, sizes: Sequence[int], place: Assignment) -> None:
    """Note on an exception that a scheduler has raised that the size of the run has changed, where it has or may have.

    Args:
        error: what the training function has raised.
        sizes: of the rounds in which this process has called it.
        place: this worker's in the last one.
    """
    if not _raised_by_scheduler(error) or (len(set(sizes)) == 1 and place.round_id.n == 1 and not place.checkpoint):
        return
    known = [size for at, size in enumerate(sizes) if at == 0 or size != sizes[at - 1]]
    if len(known) > 1:
        changed = f"after a resize of the run ({' -> '.join(map(str, known))} workers)"
    else:
        changed = (
            f"in round {place.round_id} with {count_text(place.size, 'worker')}, perhaps after a resize of the run"
        )
    error.add_note(
        f"edriver: a scheduler raised this {changed}. With fewer workers an epoch has more steps, so a scheduler for a "
        "fixed number of steps ends too early. Give it a number of steps that does not depend on the "
        "size, or let it follow the samples that are done"
    )


def _raised_by_scheduler(error: Exception) -> bool:
    schedulers = sys.modules.get("torch.optim.lr_scheduler")
    place = error.__traceback__
    while schedulers is not None and place is not None:
        if place.tb_frame.f_code.co_filename == schedulers.__file__:
            return True
        place = place.tb_next
    return False
