"""An exception of a scheduler's, once the size of the run has changed, names that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker.watch.scheduler_end import name_the_resize
from edriver.worker.watch.traceback_text import traceback_text


def one_step_too_many() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=3)
    for _ in range(4):
        optimizer.step()
        scheduler.step()


def a_rate_for_each_step() -> None:
    rates = [1.0, 0.5]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
    for _ in range(2):
        optimizer.step()
        scheduler.step()


def something_else() -> None:
    raise ValueError("Tried to step 4 times")


def text_of(raises: Callable[[], None], sizes: Sequence[int], number: int, checkpoint: int = 0) -> str:
    place = replace(SINGLE_WORKER, round_id=RoundId(1, number), size=sizes[-1], checkpoint=checkpoint)
    with pytest.raises((ValueError, IndexError)) as raised:
        raises()
    name_the_resize(raised.value, sizes, place)
    return traceback_text(raised.value)


@pytest.mark.parametrize("raises", [one_step_too_many, a_rate_for_each_step])
def test_a_scheduler_at_its_end_names_the_resize(raises: Callable[[], None]) -> None:
    assert "after a resize of the run (4 -> 2 -> 3 workers)" in text_of(raises, [4, 4, 2, 3], 4)
    assert "in round 1.3 with 2 workers, perhaps after a resize" in text_of(raises, [2], 3)
    assert "perhaps after a resize" in text_of(raises, [2], 1, checkpoint=120)


def test_one_of_a_run_that_was_not_disturbed_is_the_scripts_own() -> None:
    assert "edriver:" not in text_of(one_step_too_many, [2], 1)


def test_what_no_scheduler_has_raised_is_left_alone() -> None:
    assert "edriver:" not in text_of(something_else, [2, 3], 2)
