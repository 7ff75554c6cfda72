"""What is logged in a step of several micro-batches, of which workers may compute different numbers.

Lightning reduces a value when it is logged, a collective for each micro-batch. Here the values of a step are gathered
on each worker, and reduced once, when all its micro-batches are computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric


class StepResults(_ResultCollection):
    """Results whose `on_step` values are those of a step: of its micro-batches, with `sync_dist` of all workers'."""

    def __init__(self) -> None:
        super().__init__(training=True)
        self._gathered: dict[str, torch.Tensor] | None = None
        self._filler = False

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Gather what is logged inside, and reduce it at the end. A collective."""
        gathered: dict[str, torch.Tensor] = {}
        self._gathered = gathered
        try:
            yield
        finally:
            self._gathered = None
        for key, values in gathered.items():
            metric = self[key]
            values = metric.meta.sync(values)
            metric._forward_cache = values[0] / values[1] if metric.meta.is_mean_reduction else values
            if not metric.meta.on_epoch:
                metric.value = metric._forward_cache

    def begin_micro_batch(self, samples: int) -> None:
        """What is logged from now on is of so many samples; 0: of a filler, which does not count."""
        self._filler = samples == 0
        self.batch_size = max(1, samples)

    def update_metrics(self, key: str, value: Any, batch_size: int) -> None:
        """Take in a value that is logged."""
        metric = self[key]
        sync = metric.meta.sync
        if self._gathered is None or not metric.is_tensor:
            super().update_metrics(key, value, batch_size)
            return
        if self._filler and sync.should:
            value, batch_size = _nothing(metric, value), 0
        if metric.meta.on_step:
            self._gathered[key] = _with(metric, self._gathered.get(key), value, batch_size)
        should, sync.should = sync.should, False
        super().update_metrics(key, value, batch_size)
        sync.should = should


def _nothing(metric: _ResultMetric, value: torch.Tensor) -> torch.Tensor:
    """What changes nothing where it is reduced with others."""
    if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
        return torch.full_like(value, -torch.inf if metric.meta.is_max_reduction else torch.inf)
    return torch.zeros_like(value)


def _with(metric: _ResultMetric, before: torch.Tensor | None, value: torch.Tensor, samples: int) -> torch.Tensor:
    """What was gathered before, and a further value: the reduction of both; for a mean the sum and the number."""
    value = value.detach()
    if value.dtype not in (torch.float32, torch.float64):
        value = value.to(torch.get_default_dtype())
    if metric.meta.is_mean_reduction:
        value = torch.stack([value * samples, value.new_tensor(samples)])
    if before is None:
        return value.clone()
    if metric.meta.is_max_reduction:
        return torch.maximum(before, value)
    return torch.minimum(before, value) if metric.meta.is_min_reduction else before + value
