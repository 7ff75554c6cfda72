"""A torch.cuda that pretends: as many GPUs as CUDA_VISIBLE_DEVICES names, and what is put on them stays in host memory.

A process that imports this finds torch as it is with CUDA, as far as scripts for Horovod look: the calls by which a
process chooses its device, and by which models and tensors move there. As with CUDA, the number of a device that the
process does not see is an error.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed

COUNT = len([name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name])

_current = 0
_move_module = torch.nn.Module.to
_move_tensor = torch.Tensor.to


def _checked(device: Any) -> int:
    """A device's number, if this process sees it."""
    if isinstance(device, str):
        device = torch.device(device)
    number = device.index if isinstance(device, torch.device) else device
    if number is None:
        return _current
    if not 0 <= number < COUNT:
        raise torch.AcceleratorError(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
        )
    return int(number)


def _set_device(device: Any) -> None:
    global _current
    _current = _checked(device)


def _is_cuda(device: Any) -> bool:
    return not isinstance(device, torch.dtype | torch.Tensor) and (
        isinstance(device, int) or str(device).startswith("cuda")
    )


def _to(move: Any) -> Any:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        for device in [*args[:1], *filter(None, [kwargs.get("device")])]:
            if _is_cuda(device):
                _checked(device)
                return self
        return move(self, *args, **kwargs)

    return to


def _cuda(self: Any, device: Any = None, **_kwargs: Any) -> Any:
    _checked(device)
    return self


torch.distributed.is_nccl_available = lambda: False  # there is no GPU for it, also where torch was built with it
torch.accelerator.is_available = lambda: False  # else a DataLoader that pins memory asks the driver
torch.cuda.is_available = lambda: COUNT > 0
torch.cuda.device_count = lambda: COUNT
torch.cuda.current_device = lambda: _current
torch.cuda.set_device = _set_device
torch.cuda.manual_seed = lambda seed: None
torch.cuda.synchronize = lambda device=None: None
torch.Tensor.cuda = torch.nn.Module.cuda = _cuda  # type: ignore[assignment, method-assign]
torch.Tensor.to = _to(_move_tensor)  # type: ignore[method-assign]
torch.nn.Module.to = _to(_move_module)  # type: ignore[method-assign]
