"""What several hosts use together; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edriver.common.limits import MAX_AMOUNT
from edriver.v1 import resources_pb2

_SUMMED: Final = (
    "cpu_seconds",
    "cpu_limit_cores",
    "memory_bytes",
    "memory_limit_bytes",
    "received_bytes",
    "sent_bytes",
    "memory_kills",
)
_SUMMED_IF_KNOWN: Final = (
    "cpu_cores",
    "received_bytes_per_second",
    "sent_bytes_per_second",
    "gpu_memory_bytes",
    "gpu_memory_limit_bytes",
)


def sum_of(hosts: Iterable[resources_pb2.HostUsage]) -> resources_pb2.HostUsage:
    """What hosts use together; how busy their GPUs are is the mean over the hosts that have some."""
    total = resources_pb2.HostUsage()
    busy = []
    for usage in hosts:
        for name in _SUMMED:
            setattr(total, name, min(MAX_AMOUNT, getattr(total, name) + getattr(usage, name)))
        known = {field.name for field, _ in usage.ListFields()}
        for name in _SUMMED_IF_KNOWN:
            if name in known:
                setattr(total, name, min(MAX_AMOUNT, getattr(total, name) + getattr(usage, name)))
        if usage.HasField("gpu_utilization"):
            busy.append(usage.gpu_utilization)
    if busy:
        total.gpu_utilization = sum(busy) / len(busy)
    return total
