"""The sum of all micro-batches' gradients in a fixed order, regardless of which worker computed which.

Floating-point addition is not associative, so a sum that follows the ranks has other bits with another number of them.
Here each worker sums one slice of all gradients: it receives that slice of every micro-batch's, adds them up in order,
and sends the sum to all. That is as much traffic as an all-reduce if each worker has one micro-batch, and grows with
their number; and each worker keeps the gradients of all its micro-batches until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

Vectors = tuple[torch.Tensor, ...]
"""Gradients of all parameters: for each data type and device a vector."""


class Layout:
    """How the gradients of some parameters lie in vectors.

    Args:
        parameters: the parameters, in the same order on all workers.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._places: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, parameter in enumerate(parameters):
            self._places.setdefault((parameter.dtype, parameter.device), []).append(place)

    def vectors(self, gradients: Sequence[torch.Tensor | None]) -> Vectors:
        """A copy of the parameters' gradients; one that is missing is 0."""
        return tuple(
            torch.cat([self._gradient(gradients[place], self._parameters[place]) for place in places])
            for places in self._places.values()
        )

    def zeros(self) -> Vectors:
        """The vectors of no gradients."""
        return self.vectors([None] * len(self._parameters))

    def gradients(self, vectors: Vectors) -> list[torch.Tensor | None]:
        """The parameters' gradients: views of these vectors."""
        found: list[torch.Tensor | None] = [None] * len(self._parameters)
        for places, vector in zip(self._places.values(), vectors, strict=True):
            parts = torch.split(vector, [self._parameters[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                found[place] = part.view_as(self._parameters[place])
        return found

    @staticmethod
    def _gradient(gradient: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()


def summed(own: Mapping[int, Vectors], nothing: Vectors, holders: Sequence[Sequence[int]]) -> Vectors:
    """The sum of all micro-batches' vectors in the order of their numbers. A collective.

    Args:
        own: those of this worker's micro-batches, by number.
        nothing: such vectors of zeros.
        holders: for each rank its micro-batches.

    Returns:
        vectors with the same bits for the same micro-batches, whichever ranks have them.
    """
    numbers = sorted(own)
    return tuple(
        _summed([own[number][part] for number in numbers], zeros, [sorted(row) for row in holders])
        for part, zeros in enumerate(nothing)
    )


def _summed(own: Sequence[torch.Tensor], zeros: torch.Tensor, holders: Sequence[Sequence[int]]) -> torch.Tensor:
    length, size = zeros.numel(), len(holders)
    if size == 1:
        return _in_order(own)
    slice_length = -(-length // size)  # all slices have one length, so that they can be gathered: the last is padded
    rows = zeros.new_zeros(len(own), size * slice_length)
    for row, vector in zip(rows, own, strict=True):
        row[:length] = vector
    sent = rows.view(len(own), size, slice_length).transpose(0, 1).reshape(-1, slice_length)  # by who sums it up
    counts = [len(row) for row in holders]
    received = zeros.new_empty(sum(counts), slice_length)
    dist.all_to_all_single(received, sent, counts, [len(own)] * size)
    numbers = [number for row in holders for number in row]
    total = _in_order([received[place] for place in sorted(range(len(numbers)), key=numbers.__getitem__)])
    gathered = zeros.new_empty(size * slice_length)
    dist.all_gather_into_tensor(gathered, total)
    return gathered[:length]


def _in_order(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    return total
