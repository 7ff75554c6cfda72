"""The data and the layers that the Trainer's tests train."""

from __future__ import annotations

import torch


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Points on a plane."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.tensor([(index * 7 % 64) / 64, (index * 13 % 64) / 64])
        return {"x": x, "labels": x.sum(), "index": torch.tensor(index)}


def layers() -> torch.nn.Sequential:
    """A surface over the plane."""
    return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
