"""Compression of gradients on their way."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Compresses tensors before they are reduced. Scripts may subclass it."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor as it is to travel, and what decompress needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as it was, from what compress has answered."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The same."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The same."""
        del ctx
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point numbers in 16 bits."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """In 16 bits, if it is of floating-point numbers."""
        return (tensor.half() if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its original type."""
        return tensor.to(ctx)


class Compression:
    """The compressors that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
