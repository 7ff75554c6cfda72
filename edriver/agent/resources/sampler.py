"""One sample after the other of what workers and their host use; rates are taken between two of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from edriver.agent.resources.gpus import GpuReading, Gpus, gpus_of, open_gpus
from edriver.agent.resources.host import HostReading, HostUsageReader
from edriver.agent.resources.processes import ENDED_STATES, ProcessorTime, ProcessStat, WorkerProcesses
from edriver.agent.resources.resident import PAGE_BYTES, ResidentMemory
from edriver.agent.resources.sample import Sample, WorkerPlace
from edriver.v1 import resources_pb2

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Sampler:
    """Takes samples. Not to be called in an event loop: files of the kernel's, and NVML, may keep it waiting.

    Args:
        host: reads what the host uses.
        processes: finds those of workers.
        memory: adds up their memory.
        gpus: reads GPUs.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        host: HostUsageReader | None = None,
        processes: WorkerProcesses | None = None,
        memory: ResidentMemory | None = None,
        gpus: Gpus | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host or HostUsageReader()
        self._processes = processes or WorkerProcesses()
        self._memory = memory or ResidentMemory()
        self._gpus = gpus or open_gpus()
        self._clock = clock
        self._before: tuple[float, HostReading] | None = None
        self._times: dict[int, ProcessorTime] = {}
        self._workers_before: dict[int, tuple[float, int]] = {}  # when each was last sampled, and its ticks then

    def sample(self, workers: Sequence[WorkerPlace]) -> Sample:
        """What these workers and the host use now. One that has ended meanwhile is left out."""
        readings = self._gpus.read()
        now = self._clock()
        host = self._of_host(now, readings)
        of_pid = self._processes.by_worker([worker.pid for worker in workers])
        there = [worker for worker in workers if worker.pid in of_pid]
        pages = self._memory.pages(of_pid[worker.pid] for worker in there)
        self._times = {worker.worker_id: self._times.get(worker.worker_id) or ProcessorTime() for worker in there}
        usage = {
            worker.worker_id: self._of_worker(now, worker, of_pid[worker.pid], resident, readings)
            for worker, resident in zip(there, pages, strict=True)
        }
        self._workers_before = {worker_id: (now, times.ticks) for worker_id, times in self._times.items()}
        started = {
            pid: (worker.worker_id, stat.resident * PAGE_BYTES)
            for worker in there
            for pid, stat in of_pid[worker.pid].items()
            if pid != worker.pid and stat.state not in ENDED_STATES
        }
        return Sample(host, usage, started)

    def _of_host(self, now: float, readings: Sequence[GpuReading]) -> resources_pb2.HostUsage:
        reading = self._host.read()
        usage = resources_pb2.HostUsage(
            cpu_seconds=reading.cpu_seconds,
            cpu_limit_cores=reading.cpu_limit,
            memory_bytes=reading.memory,
            memory_limit_bytes=reading.memory_limit,
            received_bytes=reading.received,
            sent_bytes=reading.sent,
            gpus=map(_gpu_message, readings),
            gpu_utilization=_mean_utilization(readings),
            gpu_memory_bytes=sum(gpu.memory for gpu in readings) if readings else None,
            gpu_memory_limit_bytes=sum(gpu.memory_limit for gpu in readings) if readings else None,
        )
        if self._before is not None and now > self._before[0]:
            before, elapsed = self._before[1], now - self._before[0]
            usage.cpu_cores = max(0.0, reading.cpu_seconds - before.cpu_seconds) / elapsed
            usage.received_bytes_per_second = max(0, reading.received - before.received) / elapsed
            usage.sent_bytes_per_second = max(0, reading.sent - before.sent) / elapsed
        self._before = now, reading
        return usage

    def _of_worker(
        self,
        now: float,
        worker: WorkerPlace,
        processes: Mapping[int, ProcessStat],
        pages: int,
        readings: Sequence[GpuReading],
    ) -> resources_pb2.WorkerUsage:
        times = self._times[worker.worker_id]
        times.add(processes)
        own = gpus_of(processes, worker.gpu, readings)
        bytes_of_processes = [nbytes for gpu in own for pid, nbytes in gpu.processes.items() if pid in processes]
        usage = resources_pb2.WorkerUsage(
            cpu_seconds=times.ticks / TICKS_PER_SECOND,
            resident_bytes=pages * PAGE_BYTES,
            processes=len(processes),
            gpus=[gpu.index for gpu in own],
            gpu_utilization=_mean_utilization(own),
            gpu_memory_bytes=sum(bytes_of_processes) if bytes_of_processes else None,
        )
        if (last := self._workers_before.get(worker.worker_id)) is not None and now > last[0]:
            usage.cpu_cores = (times.ticks - last[1]) / TICKS_PER_SECOND / (now - last[0])
        return usage


def _gpu_message(gpu: GpuReading) -> resources_pb2.GpuUsage:
    return resources_pb2.GpuUsage(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        utilization=gpu.utilization,
        memory_bytes=gpu.memory,
        memory_limit_bytes=gpu.memory_limit,
    )


def _mean_utilization(gpus: Sequence[GpuReading]) -> float | None:
    known = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return sum(known) / len(known) if known else None
