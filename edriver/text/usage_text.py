"""What hosts and workers use (resources.proto), in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edriver.text.phrases import count_text
from edriver.v1 import resources_pb2

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: float) -> str:
    """An amount of memory: 512 MiB, 31.2 GiB."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.1f} {_UNITS[unit]}" if unit and count < 99.95 else f"{count:.0f} {_UNITS[unit]}"


def cores_text(cores: float) -> str:
    """How many cores: 0.25, 3.7, 112."""
    return f"{cores:.2f}" if cores < 1 else f"{cores:.1f}" if cores < 100 else f"{cores:.0f}"


def host_usage_text(usage: resources_pb2.HostUsage) -> str:
    """What a host uses: 3.7 of 8 cores, 12.1 of 31.2 GiB."""
    return ", ".join(_of_host(usage))


def _of_host(usage: resources_pb2.HostUsage) -> Iterator[str]:
    if usage.HasField("cpu_cores"):
        yield f"{cores_text(usage.cpu_cores)} of {usage.cpu_limit_cores:g} cores"
    yield f"{_share(usage.memory_bytes, usage.memory_limit_bytes)} of memory"
    if usage.HasField("received_bytes_per_second"):
        received, sent = bytes_text(usage.received_bytes_per_second), bytes_text(usage.sent_bytes_per_second)
        yield f"network {received}/s in, {sent}/s out"
    if usage.HasField("gpu_memory_bytes"):
        busy = f"{100 * usage.gpu_utilization:.0f} %, " if usage.HasField("gpu_utilization") else ""
        yield f"GPUs {busy}{_share(usage.gpu_memory_bytes, usage.gpu_memory_limit_bytes)}"
    if usage.memory_kills:
        yield f"{usage.memory_kills} killed, out of memory"
    if usage.standbys:
        yield count_text(usage.standbys, "standby")


def worker_usage_text(usage: resources_pb2.WorkerUsage) -> str:
    """What a worker uses: 1.0 cores, 2.1 GiB in 5 processes, GPU 0 87 %, 40.2 GiB."""
    return ", ".join(_of_worker(usage))


def _of_worker(usage: resources_pb2.WorkerUsage) -> Iterator[str]:
    if usage.HasField("cpu_cores"):
        yield f"{cores_text(usage.cpu_cores)} cores"
    several = f" in {usage.processes} processes" if usage.processes > 1 else ""
    yield f"{bytes_text(usage.resident_bytes)}{several}"
    if gpu := gpu_text(usage):
        yield f"GPU {' and '.join(map(str, usage.gpus))} {gpu}"


def gpu_text(usage: resources_pb2.WorkerUsage) -> str:
    """What a worker uses of its GPUs: 87 %, 40.2 GiB; empty: nothing, or it is not known."""
    parts = []
    if usage.HasField("gpu_utilization"):
        parts.append(f"{100 * usage.gpu_utilization:.0f} %")
    if usage.HasField("gpu_memory_bytes"):
        parts.append(bytes_text(usage.gpu_memory_bytes))
    return ", ".join(parts)


def _share(used: int, limit: int) -> str:
    """Of two amounts: 12.1 of 31.2 GiB; 512 MiB of 2.0 GiB."""
    first, second = bytes_text(used), bytes_text(limit)
    number, _, unit = first.partition(" ")
    return f"{number if second.endswith(f' {unit}') else first} of {second}"
