"""Running statistics of a step that several workers share: those of one worker that computes all of it in order."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from edriver.worker.accumulation.running_statistics import RunningStatistics

MICRO_BATCHES = 4


def model() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3, momentum=0.5)).double()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_end_with_those_of_all_micro_batches_in_order(workers: int, apart: bool) -> None:
    expected, models = model(), [model() for _ in range(workers)]
    parts = [RunningStatistics([one]) for one in models]
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        batches = torch.randn(MICRO_BATCHES, 8, 3, dtype=torch.float64, generator=generator)
        moved: list[dict[int, torch.Tensor]] = [{} for _ in range(workers)]
        for part in parts:
            part.begin()
        for number, batch in enumerate(batches):
            expected(batch)
            rank = number % workers
            models[rank](batch)
            moved[rank][number] = parts[rank].take()
        models[0](batches[0])  # a filler
        parts[0].go_back()
        rows = torch.stack(
            [part.sum_of(of_one, MICRO_BATCHES, apart) for part, of_one in zip(parts, moved, strict=True)]
        )
        for part in parts:
            part.put(rows.sum(0), MICRO_BATCHES)
    for one in models:
        torch.testing.assert_close(dict(one.state_dict()), dict(expected.state_dict()), rtol=1e-12, atol=1e-15)


def test_in_evaluation_mode_they_stay_as_they_are() -> None:
    frozen = model().eval()
    before, part = copy.deepcopy(frozen.state_dict()), RunningStatistics([frozen])
    part.begin()
    frozen(torch.randn(8, 3, dtype=torch.float64))
    part.put(part.sum_of({0: part.take()}, 2, apart=False), 2)
    torch.testing.assert_close(dict(frozen.state_dict()), dict(before), rtol=0, atol=0)


def test_modules_without_them_are_left_alone() -> None:
    assert not RunningStatistics([nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, track_running_stats=False))])


def test_statistics_of_all_workers_at_once_are_refused() -> None:
    with pytest.raises(TypeError, match="SyncBatchNorm normalizes by all workers' batches"):
        RunningStatistics([nn.SyncBatchNorm(2)])
