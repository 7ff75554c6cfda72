"""How often a tensor has been written to; many tensors at once. Checked with torch 2.11 to 2.15."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from operator import attrgetter

import torch

_version_of = attrgetter("_version")


def writes(tensors: Iterable[torch.Tensor]) -> list[int] | None:
    """A number for each tensor that grows whenever it is written to in place; None: not all are counted.

    Interface: Tensor._version, autograd's own counter, which its documentation names and does not promise. Where it no
    longer counts, no state is taken for unchanged since the last boundary: failures lead back to the last commit.
    """
    try:
        return list(map(_version_of, tensors)) if counts_writes() else None
    except RuntimeError:  # one was made in inference mode
        return None


@functools.cache
def counts_writes() -> bool:
    """Whether the counter is there and sees both a write in place and one to many tensors at once.

    Optimizers write in these two ways. One of them is not made here, because the first of a process imports
    torch._dynamo, which takes a second.
    """
    tensor = torch.zeros(1)
    try:
        seen = [_version_of(tensor)]
        tensor.add_(1)
        seen.append(_version_of(tensor))
        torch._foreach_add_([tensor], 1)
        seen.append(_version_of(tensor))
    except AttributeError:
        return False
    return bool(seen[0] < seen[1] < seen[2])


def scale(tensors: Iterable[torch.Tensor | None], factor: float) -> None:
    """Multiply tensors in place, in few kernels; None, as where a parameter has no gradient, is passed over.

    Interface: torch._foreach_mul_, with which torch's own clipping and GradScaler do that.
    """
    found = [tensor for tensor in tensors if tensor is not None] if factor != 1.0 else []
    if found:
        torch._foreach_mul_(found, factor)


def write(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, of the same shape, type and device, in few kernels.

    Interface: torch._foreach_copy_, with which torch's own fully_shard does that.
    """
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)


def scale_each(tensors: Sequence[torch.Tensor], factors: Sequence[float]) -> None:
    """Multiply each tensor in place by its factor, in few kernels. Interface: as for `scale`."""
    torch._foreach_mul_(list(tensors), list(factors))
