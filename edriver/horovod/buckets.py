"""Buckets: gradients that are reduced together, in one flat buffer of which they become views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from edriver.horovod.collectives.handles import Pending
from edriver.horovod.collectives.reductions import ReduceOp, reduce_async
from edriver.horovod.compression import Compressor
from edriver.horovod.process_sets import CollectiveLane

FIRST_BUCKET_BYTES: Final = 1 << 20
"""The first bucket is small, so that reducing begins soon; the sizes are DistributedDataParallel's."""

BUCKET_BYTES: Final = 25 << 20


@dataclass(slots=True, eq=False)
class Bucket:
    """Gradients that are reduced together.

    Attributes:
        params: whose gradients,
        views: and each one's place in the buffer.
        flat: the buffer.
        taken: which gradients of this step are in the buffer.
        pending: the reduction that is under way.
    """

    params: list[torch.Tensor]
    flat: torch.Tensor
    views: list[torch.Tensor]
    taken: set[int] = field(default_factory=set)
    pending: Pending | None = None
    _context: Any = field(default=None)

    @staticmethod
    def of(params: list[torch.Tensor]) -> Bucket:
        """A bucket of parameters of one type, on one device."""
        sizes = [param.numel() for param in params]
        flat = torch.zeros(sum(sizes), dtype=params[0].dtype, device=params[0].device)
        views = [part.view(p.shape) for part, p in zip(torch.split(flat, sizes), params, strict=True)]
        return Bucket(params, flat, views)

    def take(self, at: int, scale: float) -> None:
        """Make a gradient a view of the buffer, while it is in the processor's cache; one that is not there is zeros.

        Args:
            at: its place in the bucket.
            scale: what it is multiplied with.
        """
        param, view = self.params[at], self.views[at]
        gradient = param.grad
        with torch.no_grad():
            if gradient is None:
                view.zero_()
            elif gradient.is_sparse:
                view.copy_(gradient.to_dense()).mul_(scale)
            elif gradient.data_ptr() != view.data_ptr():
                torch.mul(gradient, scale, out=view)
            elif scale != 1.0:
                view.mul_(scale)
        if param.requires_grad:
            param.grad = view
        self.taken.add(at)

    def launch(self, scale: float, op: ReduceOp, compression: type[Compressor], lane: CollectiveLane) -> None:
        """Start to reduce it, with zeros for gradients that are not there."""
        for at in range(len(self.params)):
            if at not in self.taken:
                self.take(at, scale)
        with torch.no_grad():
            compressed, self._context = compression.compress(self.flat)
            work = reduce_async(compressed, op, lane)
        self.pending = Pending([work], lambda: compressed)

    def finish(self, scale: float, compression: type[Compressor]) -> None:
        """Wait for it. Raises HorovodInternalError where a member is gone."""
        assert self.pending is not None, "it has been launched"
        with torch.no_grad():
            total = compression.decompress(self.pending.result(), self._context)
            if total.data_ptr() != self.flat.data_ptr():
                self.flat.copy_(total)
            if scale != 1.0:
                self.flat.mul_(scale)
        self.reset()

    @property
    def full(self) -> bool:
        """Whether all gradients of this step are in the buffer."""
        return len(self.taken) == len(self.params)

    def reset(self) -> None:
        """Be ready for another step."""
        self.pending = self._context = None
        self.taken = set()


def bucketed(params: Sequence[torch.Tensor]) -> list[Bucket]:
    """Put parameters into buckets, in this order."""
    return [Bucket.of(group) for group in _groups(params)]


def _groups(params: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    open_groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    limit = FIRST_BUCKET_BYTES
    for param in params:
        group = open_groups.setdefault((param.dtype, param.device), [])
        group.append(param)
        if sum(each.nbytes for each in group) >= limit:
            yield open_groups.pop((param.dtype, param.device))
            limit = BUCKET_BYTES
    yield from open_groups.values()
