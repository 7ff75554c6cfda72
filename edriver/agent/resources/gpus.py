"""What is used of the host's NVIDIA GPUs, from NVML through the package nvidia-ml-py (its module is called pynvml).

Both the package and the driver's library may be missing, as on a host without GPUs: then nothing is said of GPUs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

PERCENT: Final = 0.01


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment.

    Attributes:
        index: its number, in the order of NVML.
        uuid: its ID in NVML.
        name: its name.
        utilization: the share of time in which a kernel ran, from 0 to 1; None if NVML does not say.
        memory: its memory in use, in bytes.
        memory_limit: its total memory, in bytes.
        processes: the bytes used by each process on it, by process ID, as far as NVML says.
    """

    index: int
    uuid: str
    name: str
    utilization: float | None
    memory: int
    memory_limit: int
    processes: Mapping[int, int] = field(default_factory=dict)


class Gpus(Protocol):
    """Reads all GPUs of the host."""

    def read(self) -> Sequence[GpuReading]:
        """What is used of each; of one that does not answer nothing."""
        ...


class NoGpus:
    """A host without GPUs, or one that cannot ask them."""

    def read(self) -> Sequence[GpuReading]:
        return ()


class Nvml:
    """The GPUs that NVML knows.

    Args:
        nvml: the module pynvml.

    Raises:
        nvml.NVMLError: no NVIDIA driver is loaded.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._devices: list[tuple[int, Any, str, str]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):  # it has fallen off the bus
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                self._devices.append(
                    (index, handle, _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)))
                )

    def read(self) -> Sequence[GpuReading]:
        return list(self._readings())

    def _readings(self) -> Iterator[GpuReading]:
        nvml = self._nvml
        for index, handle, uuid, name in self._devices:
            memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)
            if memory is None:
                continue
            rates = self._asked(nvml.nvmlDeviceGetUtilizationRates, handle)
            processes = self._asked(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            yield GpuReading(
                index,
                uuid,
                name,
                None if rates is None else PERCENT * rates.gpu,
                int(memory.used),
                int(memory.total),
                {each.pid: int(each.usedGpuMemory) for each in processes if each.usedGpuMemory is not None},
            )

    def _asked(self, call: Callable[[Any], Any], handle: Any) -> Any:
        try:
            return call(handle)
        except self._nvml.NVMLError:  # this GPU does not support it (one that is divided by MIG), or is lost
            return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def open_gpus(find: Callable[[str], Any] = importlib.import_module) -> Gpus:
    """The host's GPUs, if they can be asked.

    Args:
        find: imports a module.
    """
    try:
        nvml = find("pynvml")
    except ImportError:
        return NoGpus()
    try:
        return Nvml(nvml)
    except nvml.NVMLError:
        return NoGpus()


def gpus_of(processes: Mapping[int, object], assigned: str, readings: Sequence[GpuReading]) -> list[GpuReading]:
    """The GPUs that a worker uses: those on which it has memory or, before it has any, its assigned one.

    Args:
        processes: the IDs of the worker's processes.
        assigned: its CUDA_VISIBLE_DEVICES: a number, or the beginning of an ID; empty: no GPU is assigned.
        readings: all GPUs.
    """
    if found := [gpu for gpu in readings if not processes.keys().isdisjoint(gpu.processes)]:
        return found
    if assigned.isdecimal():
        return [gpu for gpu in readings if gpu.index == int(assigned)]
    return [gpu for gpu in readings if assigned and gpu.uuid.startswith(assigned)]
