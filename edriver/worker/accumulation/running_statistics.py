"""The running statistics of BatchNorm in a step, as if one worker computed all micro-batches one after another.

Each forward pass in training mode moves them towards the statistics of its micro-batch. Workers that do so each by
itself end with different ones, none of which has seen all samples, and with a number of updates that depends on the
number of workers. So each micro-batch is computed from those of the step's beginning; how far it moves them is kept,
and at the end of the step these parts are added up:

    after B updates   r_B = r_0 + sum over k of w_k (r_k - r_0),   r_k: from r_0 by micro-batch k alone

with w_k = (1 - momentum) ** (B - 1 - k), or, for a cumulative average of which n updates are known, (n + 1) / (n + B).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from edriver.worker.backend import tensors

_NAMES: Final = ("running_mean", "running_var")
_COUNT: Final = "num_batches_tracked"


class RunningStatistics:
    """Those of all modules of some models that track them: BatchNorm, and InstanceNorm where it does.

    Args:
        models: as they are trained.

    Raises:
        TypeError: a module is a SyncBatchNorm.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        parts = {id(part): part for model in models for part in model.modules()}
        for part in parts.values():
            if isinstance(part, nn.SyncBatchNorm):
                raise TypeError(
                    "SyncBatchNorm normalizes by all workers' batches of a forward pass, so that a step depends on the "
                    "number of workers: with GlobalBatch use BatchNorm, which normalizes by the micro-batch (leave out "
                    "convert_sync_batchnorm)"
                )
        # Attributes of a module are read each time: to() and load_state_dict(assign=True) put others in their place.
        self._modules: list[Any] = [
            part
            for part in parts.values()
            if hasattr(part, "momentum") and isinstance(getattr(part, _NAMES[0], None), torch.Tensor)
        ]
        self._before: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._modules)

    def begin(self) -> None:
        """Note them at the beginning of a step."""
        self._before = [buffer.detach().clone() for buffer in self._buffers()]
        self._counts = [count.detach().clone() for count in self._trackers()]

    def take(self) -> torch.Tensor:
        """How far a micro-batch has moved them, as one vector; they are again what they were."""
        moved = _vector(self._buffers()) - _vector(self._before)
        self.go_back()
        return moved

    def go_back(self) -> None:
        """Undo what the last micro-batch has done to them."""
        tensors.write([*self._buffers(), *self._trackers()], [*self._before, *self._counts])

    def sum_of(self, moved: Mapping[int, torch.Tensor], micro_batches: int, apart: bool) -> torch.Tensor:
        """What this worker's micro-batches add to the sum over all workers.

        Args:
            moved: for each of them, by number, how far it has moved them.
            micro_batches: in the step.
            apart: whether each has a row for itself, so that the bits of the sum do not depend on who has which.

        Returns:
            float64 of shape (micro_batches or 1, elements).
        """
        sizes = [before.numel() for before in self._before]
        rows = torch.zeros(
            micro_batches if apart else 1, sum(sizes), dtype=torch.float64, device=self._before[0].device
        )
        counts = dict(zip(map(id, self._tracking()), self._counts, strict=True))
        for number, vector in sorted(moved.items()):
            weights = [_weight(m.momentum, counts.get(id(m)), number, micro_batches) for m in self._modules]
            weighted = vector.clone()
            tensors.scale_each(torch.split(weighted, sizes), [weight for weight in weights for _ in _NAMES])
            rows[number if apart else 0] += weighted
        return rows

    def put(self, rows: torch.Tensor, micro_batches: int) -> None:
        """Set them to what they are after the step.

        Args:
            rows: the sum over all workers of what `sum_of` has returned.
            micro_batches: in the step.
        """
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        parts = torch.split(total, [before.numel() for before in self._before])
        after = [(b + part.view_as(b)).to(b.dtype) for b, part in zip(self._before, parts, strict=True)]
        counts = [n + micro_batches * m.training for m, n in zip(self._tracking(), self._counts, strict=True)]
        tensors.write([*self._buffers(), *self._trackers()], [*after, *counts])

    def _buffers(self) -> list[torch.Tensor]:
        return [getattr(module, name) for module in self._modules for name in _NAMES]

    def _tracking(self) -> list[Any]:
        """The modules that count their updates."""
        return [module for module in self._modules if isinstance(getattr(module, _COUNT, None), torch.Tensor)]

    def _trackers(self) -> list[torch.Tensor]:
        return [getattr(module, _COUNT) for module in self._tracking()]


def _weight(momentum: float | None, count: torch.Tensor | None, number: int, micro_batches: int) -> float:
    """How much the part of a micro-batch counts; see above."""
    if momentum is not None:
        return float((1.0 - momentum) ** (micro_batches - 1 - number))
    known = 0 if count is None else int(count)
    return (known + 1) / (known + micro_batches)


def _vector(buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([buffer.detach().flatten().double() for buffer in buffers])
