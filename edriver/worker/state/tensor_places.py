"""Where parameters lie in memory: one that is assigned through `.data` moves, and no counter of torch sees that."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_, methodcaller

import torch

_place_of = methodcaller("data_ptr")


class TensorPlaces:
    """The places of some tensors at the last boundary.

    As a rule they do not change, so a boundary does not look at them; it does once a round's first boundary has shown
    that these do.
    """

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._places: list[int] = []
        self._moving = False

    def watch(self, tensors: list[torch.Tensor]) -> None:
        """Watch these from now on; where they are the same as before, nothing is noted again."""
        if len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors)):
            return
        self._tensors = tensors
        self.note()

    def note(self) -> None:
        """Here is a boundary: what lies where is right."""
        self._places = _places(self._tensors)

    def boundary(self) -> None:
        """The same, for tensors that are known to change their places."""
        if self._moving:
            self.note()

    def first_boundary(self) -> None:
        """Look whether they do: this is the first boundary since `watch`."""
        self._moving = self._moving or self.changed()
        self.note()

    def assigned_before_step(self) -> bool:
        """An optimizer begins its step: whether one of those that change their places has done so already."""
        return self._moving and self.changed()

    def changed(self) -> bool:
        """Whether one lies elsewhere than at the last boundary."""
        return self._places != _places(self._tensors)


def _places(tensors: Iterable[torch.Tensor]) -> list[int]:
    return list(map(_place_of, tensors))
