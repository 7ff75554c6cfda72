"""Copies of variables that change outside of an optimizer's step, made at every boundary.

What batch normalization gathers, the states of seed generators, metrics, an optimizer's learning rate: Keras keeps
them in variables like weights. A frozen layer's weights are among them; they are copied once, for only what has been
written to since the last boundary is copied again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from edriver.worker.backend.tensors import writes


class VariableCopies:
    """Some tensors, as of the last `keep`."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._copies: list[torch.Tensor | None] = []
        self._writes: list[int | None] = []

    def watch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep these from now on."""
        before = {id(t): (c, w) for t, c, w in zip(self._tensors, self._copies, self._writes, strict=True)}
        self._tensors = list(tensors)
        known = [before.get(id(tensor), (None, None)) for tensor in self._tensors]
        self._copies, self._writes = [copy for copy, _ in known], [written for _, written in known]

    def written(self) -> list[torch.Tensor]:
        """Those that have been written to since the last `keep`."""
        now = self._written()
        return [t for t, w, before in zip(self._tensors, now, self._writes, strict=True) if w is None or w != before]

    def keep(self) -> None:
        """Copy those that have been written to."""
        now = self._written()
        for at, tensor in enumerate(self._tensors):
            if (copy := self._copies[at]) is None:
                self._copies[at] = tensor.detach().clone()
            elif now[at] is None or now[at] != self._writes[at]:
                copy.copy_(tensor.detach())
        self._writes = now

    def bring_back(self) -> None:
        """Write what was kept into those that have been written to since."""
        now = self._written()
        with torch.no_grad():
            for at, (tensor, copy) in enumerate(zip(self._tensors, self._copies, strict=True)):
                if copy is not None and (now[at] is None or now[at] != self._writes[at]):
                    tensor.copy_(copy)
        self._writes = self._written()

    def _written(self) -> list[int | None]:
        counts = writes(self._tensors)
        return [None] * len(self._tensors) if counts is None else list(counts)
