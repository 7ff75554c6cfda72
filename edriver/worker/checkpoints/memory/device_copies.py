"""Copies of what lies on a GPU into a shard, while the device continues to compute.

The same rules hold as for a commit (copies/side_stream.py): what only an optimizer changes is copied on a separate
stream, for which that optimizer's next step waits on the device; everything else is copied on the stream that may
change it. The shard is committed once all copies are complete, in a thread, so that no step waits for them.

The mapping into which the device writes is pinned once, by cudaHostRegister, so each byte is copied once and nothing
goes through a buffer of CUDA's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from edriver.worker.checkpoints.memory.mapped import MappedFile
from edriver.worker.checkpoints.memory.script_state import optimizers_of
from edriver.worker.copies.side_stream import Copy, SideCopies, SideStream

logger = logging.getLogger("edriver.worker")


class DeviceCopies:
    """Those of one process.

    Args:
        side: makes the copies.
        pin: has the device write into host memory at an address, of so many bytes, without a buffer in between; returns
            what undoes that.
    """

    def __init__(
        self, side: SideCopies | None = None, pin: Callable[[int, int], Callable[[], None] | None] | None = None
    ) -> None:
        self._side = SideStream() if side is None else side
        self._pin = _pin if pin is None else pin
        self._hooked: WeakSet[Optimizer] = WeakSet()
        self._optimizers: list[Optimizer] = []
        self._behind: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether what `then` was given has yet to return."""
        return self._behind is not None and self._behind.is_alive()

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on the device."""
        return self._side.covers(tensor)

    def watch(self, state: Mapping[str, Any]) -> None:
        """Learn which optimizers a state has: what they change, nothing else does."""
        self._optimizers = optimizers_of(state)

    def begin(self, file: MappedFile, copies: list[Copy]) -> None:
        """Begin to copy from the device into a mapped file.

        Args:
            file: the file.
            copies: from the device's tensors to tensors of the file.
        """
        file.pin(self._pin)
        for optimizer in self._optimizers:
            if optimizer not in self._hooked:
                self._hooked.add(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self._side.hold())
        theirs = {tensor.data_ptr() for each in self._optimizers for tensor in _changed_by(each)}
        lasting = [copy for copy in copies if copy[0].data_ptr() in theirs]
        changing = [copy for copy in copies if copy[0].data_ptr() not in theirs]
        self._side.begin(changing, lasting)

    def then(self, end: Callable[[], object]) -> None:
        """Call this in a thread, once all copies that have begun are complete."""
        complete = self._side.completion()

        def wait_and_end() -> None:
            complete()
            end()

        self._behind = threading.Thread(target=wait_and_end, name="edriver-checkpoint")
        self._behind.start()  # the process waits for it before it ends

    def wait(self) -> None:
        """Wait until what `then` was given has returned."""
        if self._behind is not None:
            self._behind.join()
            self._behind = None


def _changed_by(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = [value for of_one in optimizer.state.values() for value in of_one.values()]
    for tensor in (*parameters, *moments):
        if isinstance(tensor, DTensor):
            yield tensor.to_local().detach()
        elif isinstance(tensor, torch.Tensor):
            yield tensor.detach()


def _pin(address: int, nbytes: int) -> Callable[[], None] | None:
    """https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html (cudaHostRegister)."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if (code := int(cudart.cudaHostRegister(address, nbytes, 0))) != 0:
        logger.debug("a checkpoint's memory cannot be pinned (%d): copies from the device are slower", code)
        return None
    return lambda: cudart.cudaHostUnregister(address)
