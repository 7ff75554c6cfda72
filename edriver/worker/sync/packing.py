"""Packing: many tensors as one stream of bytes, cut into pieces of equal length.

Every tensor starts at a multiple of ALIGNMENT bytes, so that it can be used where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

ALIGNMENT_BYTES = 64
"""In bytes."""


def aligned(length: int) -> int:
    """The bytes that so many take in the stream."""
    return length + -length % ALIGNMENT_BYTES


class Layout:
    """Which tensors a stream has, and where each of them starts.

    Attributes:
        tensors: in the order of the stream.
        length: the stream's so far, in bytes: a multiple of ALIGNMENT.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.length = 0

    def add(self, tensor: torch.Tensor) -> int:
        """Put a dense tensor at the end; returns where it starts."""
        start = self.length
        self.tensors.append(tensor)
        self.length += aligned(tensor.nbytes)
        return start


def elements_in(stream: torch.Tensor, start: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor of that shape that starts at byte `start`, as a view of the stream, which has its dtype."""
    first = start // stream.itemsize
    return stream[first : first + math.prod(shape)].view(shape)


def packed(layout: Layout, length: int, buffers: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The stream's pieces, each of `length` bytes but for the last, which may be shorter.

    A piece that lies within one contiguous tensor in host memory is that memory itself. All others are copied into
    the buffers in turn, so a piece is void when len(buffers) more have been asked for.

    Args:
        layout: what the stream has.
        length: of a piece, in bytes.
        buffers: uint8 of shape (length,), at least one.
    """
    turn = 0
    for parts in _cut(_runs(layout.tensors), length):
        if len(parts) == 1:
            yield parts[0]
            continue
        piece = buffers[turn % len(buffers)][: sum(map(len, parts))]
        turn += 1
        torch.cat(parts, out=piece)
        yield piece


def _runs(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The stream as uint8 tensors of any length: the tensors' elements and the gaps between them."""
    gap = torch.zeros(ALIGNMENT_BYTES, dtype=torch.uint8, device="cpu")
    for tensor in tensors:
        if tensor.numel():
            yield _elements(tensor)
        if over := -tensor.nbytes % ALIGNMENT_BYTES:
            yield gap[:over]


def _cut(runs: Iterable[torch.Tensor], length: int) -> Iterator[list[torch.Tensor]]:
    """The runs, split where a piece ends."""
    parts: list[torch.Tensor] = []
    missing = length
    for run in runs:
        rest = run
        while len(rest) >= missing:
            parts.append(rest[:missing])
            yield parts
            rest, parts, missing = rest[missing:], [], length
        if len(rest):
            parts.append(rest)
            missing -= len(rest)
    if parts:
        yield parts


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as bytes in host memory, without a copy if the tensor is contiguous there."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1).view(torch.uint8)
