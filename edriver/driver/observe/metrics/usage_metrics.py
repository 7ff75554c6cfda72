"""What Prometheus reads of the use of resources: by host, and by slot of a host; a slot has one worker at a time.

Names follow https://prometheus.io/docs/practices/naming. The documentation shows these texts
(scripts/docs_site/metrics.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from edriver.driver.core.roster import Roster
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.v1 import resources_pb2

MAX_HOSTS: Final = 500
"""Hosts that have series, the first by their names,"""

MAX_SLOTS: Final = 4000
"""and slots of these hosts."""

Read = Callable[[resources_pb2.HostUsage], float]
ReadWorker = Callable[[resources_pb2.WorkerUsage], float]
ReadGpu = Callable[[resources_pb2.GpuUsage], float]

_HOST: Final[Sequence[tuple[str, str, str, Read]]] = (
    (
        "counter",
        "host_cpu_seconds",
        "Processor time used on the host, by all processes.",
        lambda of: of.cpu_seconds,
    ),
    (
        "gauge",
        "host_cpu_limit_cores",
        "Cores that the host has, or its container may use.",
        lambda of: of.cpu_limit_cores,
    ),
    (
        "gauge",
        "host_memory_bytes",
        "Memory in use on the host, without memory that could be freed immediately.",
        lambda of: of.memory_bytes,
    ),
    (
        "gauge",
        "host_memory_limit_bytes",
        "Memory that the host has, or its container may use.",
        lambda of: of.memory_limit_bytes,
    ),
    (
        "counter",
        "host_network_received_bytes",
        "Bytes from the network, without loopback and RDMA.",
        lambda of: of.received_bytes,
    ),
    (
        "counter",
        "host_network_sent_bytes",
        "Bytes to the network, without loopback and RDMA.",
        lambda of: of.sent_bytes,
    ),
    (
        "counter",
        "host_memory_kills",
        "Processes that the kernel has killed because memory ran out, since the host's agent started.",
        lambda of: of.memory_kills,
    ),
)
_WORKER: Final[Sequence[tuple[str, str, str, ReadWorker]]] = (
    (
        "counter",
        "worker_cpu_seconds",
        "Processor time of the slot's worker and all processes that it has started.",
        lambda of: of.cpu_seconds,
    ),
    (
        "gauge",
        "worker_resident_memory_bytes",
        "Memory of these processes; what they share is counted once.",
        lambda of: of.resident_bytes,
    ),
    ("gauge", "worker_processes", "How many processes these are.", lambda of: of.processes),
)
_GPU: Final[Sequence[tuple[str, str, ReadGpu]]] = (
    ("gpu_memory_bytes", "Memory in use on the GPU, by all processes.", lambda of: of.memory_bytes),
    ("gpu_memory_limit_bytes", "Memory that the GPU has.", lambda of: of.memory_limit_bytes),
)


class UsageMetrics:
    """What hosts and workers use. What an agent has not said, and what is gone, has no series.

    Args:
        usage: what is known; read only.
        roster: the workers that there are; read only.
    """

    def __init__(self, usage: UsageTracker, roster: Roster) -> None:
        self._usage = usage
        self._roster = roster

    def families(self) -> Iterator[Metric]:
        """All of it, as it is now."""
        yield from self._of_hosts()
        yield from self._of_workers()
        yield from self._of_gpus()

    def _hosts(self) -> list[str]:
        return sorted(name for name in self._usage.hosts if name in self._roster.hosts)[:MAX_HOSTS]

    def _of_hosts(self) -> Iterator[Metric]:
        hosts = self._hosts()
        for kind, name, help_text, read in _HOST:
            family = _family(kind, name, help_text, ["host"])
            for host in hosts:
                family.add_metric([host], read(self._usage.hosts[host]))
            yield family

    def _of_workers(self) -> Iterator[Metric]:
        shown = set(self._hosts())
        there = sorted(
            (worker.host, worker.slot, worker_id)  # a slot's next worker comes after the one that leaves
            for worker_id in self._usage.workers
            if (worker := self._roster.workers.get(worker_id)) is not None and worker.host in shown
        )
        of_slot = {(host, str(slot)): self._usage.workers[worker_id] for host, slot, worker_id in there[:MAX_SLOTS]}
        for kind, name, help_text, read in _WORKER:
            family = _family(kind, name, help_text, ["host", "slot"])
            for labels, usage in of_slot.items():
                family.add_metric(labels, read(usage))
            yield family
        memory = _family("gauge", "worker_gpu_memory_bytes", "Memory of these processes on all GPUs.", ["host", "slot"])
        for labels, usage in of_slot.items():
            if usage.HasField("gpu_memory_bytes"):
                memory.add_metric(labels, usage.gpu_memory_bytes)
        yield memory

    def _of_gpus(self) -> Iterator[Metric]:
        gpus = {(host, str(gpu.index)): gpu for host in self._hosts() for gpu in self._usage.hosts[host].gpus}
        busy = _family(
            "gauge", "gpu_utilization_ratio", "The share of time in which the GPU ran a kernel.", ["host", "gpu"]
        )
        for labels, gpu in gpus.items():
            if gpu.HasField("utilization"):
                busy.add_metric(labels, gpu.utilization)
        yield busy
        for name, help_text, read in _GPU:
            family = _family("gauge", name, help_text, ["host", "gpu"])
            for labels, gpu in gpus.items():
                family.add_metric(labels, read(gpu))
            yield family


def _family(kind: str, name: str, help_text: str, labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(f"edriver_{name}", help_text, labels=labels)
