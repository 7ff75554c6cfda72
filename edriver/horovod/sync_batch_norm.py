"""SyncBatchNorm: batch normalisation over the batches of all members, on any device."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from edriver.horovod import basics
from edriver.horovod.collectives.reductions import Sum, allreduce


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d and 3d in one, whose mean and variance are those of all members' batches together.

    The arguments are those of torch.nn.BatchNorm2d. In training all members call it equally often, in the same order;
    their batches may differ in length.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Normalise a batch of shape (N, C, ...)."""
        self._check_input_dim(input)
        if basics.size() == 1 or not (self.training or self.running_mean is None):
            result: torch.Tensor = super().forward(input)
            return result
        dims = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        exact = input.to(torch.promote_types(input.dtype, torch.float32))
        count = torch.full((1,), input.numel() // input.shape[1], dtype=exact.dtype, device=input.device)
        sums = allreduce(torch.cat([exact.sum(dims), count]), op=Sum, name="sync_batch_norm.mean")
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = exact - mean.view(shape)
        variance = allreduce(centred.square().sum(dims), op=Sum, name="sync_batch_norm.variance") / total
        self._note(mean.detach(), variance.detach(), total)
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _note(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Move the running statistics."""
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None, "it comes with the others"
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
