"""Commits of what lies on a GPU: into pinned host memory, while the device continues to compute.

A commit so takes none of the device's memory. What only optimizers change (parameters, their own state) stays as it is
until the next optimizer step: it is copied on a separate stream, for which that step waits. Everything else
(BatchNorm's running means, a script's own tensors) may change with the next kernel, so it is copied on the stream that
will run that kernel. Until the next step the live state is what is being committed, and from then on the copy is whole:
there is something to go back to at any time, with one set of buffers.

The streams' rules: https://docs.pytorch.org/docs/stable/notes/cuda.html (CUDA streams; Use pinned memory buffers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch

Copy: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""From the first tensor to the second."""


class SideCopies(Protocol):
    """Copies that run beside the computation."""

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether this is what copies such a tensor."""

    def fits(self, buffer: torch.Tensor) -> bool:
        """Whether a buffer is of the kind that `buffer` makes."""

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new buffer for a tensor's elements."""

    def begin(self, changing: Sequence[Copy], lasting: Sequence[Copy]) -> None:
        """Begin to copy.

        Args:
            changing: what the next kernel may change.
            lasting: what nothing changes before the next `hold`.
        """

    def hold(self) -> None:
        """What is asked of the device from now on comes after all copies that have begun."""

    def completion(self) -> Callable[[], None]:
        """What waits, in whichever thread calls it, until all copies that have begun are complete."""


class SideStream:
    """CUDA's."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether it lies on a GPU."""
        return tensor.is_cuda

    def fits(self, buffer: torch.Tensor) -> bool:
        """Whether it is in pinned memory."""
        return not buffer.is_cuda and buffer.is_pinned()

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory of the tensor's shape and type."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def begin(self, changing: Sequence[Copy], lasting: Sequence[Copy]) -> None:
        if not changing and not lasting:
            return
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.hold()  # no buffer is written by two streams at a time
        for source, target in changing:
            target.copy_(source, non_blocking=True)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for source, target in lasting:
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)  # or its memory may be given to another tensor before

    def hold(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def completion(self) -> Callable[[], None]:
        if self._stream is None:
            return lambda: None
        self._stream.wait_stream(torch.cuda.current_stream())  # which copies what changes
        done = self._stream.record_event()
        synchronize: Callable[[], None] = done.synchronize
        return synchronize
