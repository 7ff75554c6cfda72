"""A device's copies, played by what makes them as late as it may."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from edriver.worker.copies.side_stream import Copy


class LateCopies:
    """Copies tensors that must not change, as late as it can: in `hold`."""

    def __init__(self) -> None:
        self.late: list[Copy] = []

    def covers(self, tensor: torch.Tensor) -> bool:
        return tensor.ndim > 0  # Adam's counter of steps is in host memory

    def fits(self, buffer: torch.Tensor) -> bool:
        return True

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, torch.nan)

    def begin(self, changing: Sequence[Copy], lasting: Sequence[Copy]) -> None:
        self.hold()
        for source, target in changing:
            target.copy_(source)
        self.late = list(lasting)

    def hold(self) -> None:
        with torch.no_grad():
            for source, target in self.late:
                target.copy_(source)
        self.late = []

    def completion(self) -> Callable[[], None]:
        return self.hold
