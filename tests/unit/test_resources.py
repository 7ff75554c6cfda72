"""What an agent samples: processes of workers, their processor time and memory, the host's limits, and what is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edriver.agent.resources.changes import REFRESH_INTERVAL, UsageChanges, UsageReports
from edriver.agent.resources.gpus import GpuReading, NoGpus, gpus_of, open_gpus
from edriver.agent.resources.host import HostUsageReader, interfaces_that_count
from edriver.agent.resources.limits import cpu_limit, memory_limit
from edriver.agent.resources.processes import (
    LOOKS_BETWEEN_FULL_ONES,
    ProcessorTime,
    ProcessStat,
    WorkerProcesses,
    ended_among,
    process_stat,
)
from edriver.agent.resources.resident import MAX_WALK_AGE, PAGE_BYTES, ResidentMemory, private_pages
from edriver.agent.resources.sample import Sample, WorkerPlace
from edriver.agent.resources.sampler import Sampler
from edriver.v1 import agent_pb2, resources_pb2
from tests.waiting import until

MIB = 1 << 20


def stat(pid: int, parent: int = 1, own: int = 0, reaped: int = 0, start: int = 1, resident: int = 0) -> ProcessStat:
    return ProcessStat(pid, start, parent, pid, "S", own, reaped, resident)


def by_pid(*stats: ProcessStat) -> dict[int, ProcessStat]:
    return {each.pid: each for each in stats}


class Proc:
    """The kernel's files about processes, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def has(self, pid: int, parent: int, session: int, start: int = 1, state: str = "S") -> None:
        """`state ppid pgrp session tty tpgid flags 4*faults utime stime cutime cstime prio nice threads 0 start ...`"""
        fields = [state, parent, pid, session, *[0] * 7, 5, 6, 7, 8, 20, 0, 1, 0, start, 4096, 9]
        (self.root / str(pid)).mkdir(exist_ok=True)
        (self.root / str(pid) / "stat").write_text(f"{pid} (a ) name) {' '.join(map(str, fields))} 0 0\n")

    def ends(self, pid: int) -> None:
        (self.root / str(pid) / "stat").unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def pids(found: Mapping[int, Mapping[int, ProcessStat]]) -> dict[int, set[int]]:
    return {worker: set(processes) for worker, processes in found.items()}


def test_a_process_as_the_kernel_tells_of_it(proc: Proc) -> None:
    proc.has(7, parent=3, session=7, start=42)
    assert process_stat(7, str(proc.root)) == ProcessStat(7, 42, 3, 7, "S", 11, 15, 9)
    assert process_stat(8, str(proc.root)) is None


def test_each_process_belongs_to_one_worker(proc: Proc) -> None:
    for pid, parent, session in ((100, 1, 100), (101, 100, 100), (102, 101, 102), (200, 1, 200), (300, 1, 300)):
        proc.has(pid, parent, session)
    found = WorkerProcesses(proc.root).by_worker([100, 200, 999])
    assert pids(found) == {100: {100, 101, 102}, 200: {200}}


def test_an_orphan_in_a_session_of_its_own_stays_its_workers(proc: Proc) -> None:
    processes = WorkerProcesses(proc.root)
    for pid, parent, session in ((100, 1, 100), (101, 100, 100), (102, 101, 102)):
        proc.has(pid, parent, session)
    processes.by_worker([100])
    proc.ends(101)
    proc.has(102, parent=1, session=102)
    assert pids(processes.by_worker([100])) == {100: {100, 102}}
    proc.ends(102)
    proc.has(102, parent=1, session=102, start=99)  # its id is another process's now
    assert pids(processes.by_worker([100])) == {100: {100}}


def test_processes_of_others_are_seldom_looked_at(proc: Proc) -> None:
    processes = WorkerProcesses(proc.root)
    proc.has(100, 1, 100)
    proc.has(300, 1, 300)
    processes.by_worker([100])
    proc.has(300, 100, 100)
    assert pids(processes.by_worker([100])) == {100: {100}}
    proc.has(301, 100, 100)  # a new one is seen at once
    assert pids(processes.by_worker([100])) == {100: {100, 301}}
    for _ in range(LOOKS_BETWEEN_FULL_ONES):
        processes.by_worker([100])
    assert pids(processes.by_worker([100])) == {100: {100, 300, 301}}
    assert pids(processes.by_worker([100, 300]))[300] == {300}


def test_parents_that_make_a_ring_are_no_ones(proc: Proc) -> None:
    proc.has(100, 1, 100)
    proc.has(5, 6, 5)
    proc.has(6, 5, 6)
    assert pids(WorkerProcesses(proc.root).by_worker([100])) == {100: {100}}


def test_processor_time_is_counted_once() -> None:
    times = ProcessorTime()
    times.add(by_pid(stat(1, own=10), stat(2, parent=1, own=5)))
    assert times.ticks == 15
    times.add(by_pid(stat(1, own=12), stat(2, parent=1, own=8)))
    assert times.ticks == 20
    times.add(by_pid(stat(1, own=12, reaped=9)))  # the child has used one more, and was waited for
    assert times.ticks == 21


def test_the_time_of_a_child_that_nobody_waits_for_is_kept() -> None:
    times = ProcessorTime()
    times.add(by_pid(stat(1, own=10), stat(2, parent=1, own=5)))
    times.add(by_pid(stat(1, own=11)))
    assert times.ticks == 16


def test_grandchildren_that_were_waited_for_are_counted_once() -> None:
    times = ProcessorTime()
    times.add(by_pid(stat(1), stat(2, parent=1, own=5, reaped=3), stat(3, parent=2, own=7)))
    times.add(by_pid(stat(1, reaped=16)))
    assert times.ticks == 16


def test_an_id_that_is_used_again_is_another_process() -> None:
    times = ProcessorTime()
    times.add(by_pid(stat(1), stat(2, parent=1, own=50)))
    times.add(by_pid(stat(1, reaped=50), stat(2, parent=1, own=3, start=9)))
    assert times.ticks == 53


class Walks:
    """Counts pages, at a price."""

    def __init__(self, private: int, price: float = 0.0) -> None:
        self.private = private
        self.walked: list[int] = []
        self.now = self.spent = 0.0
        self._price = price

    def __call__(self, pid: int) -> int:
        self.walked.append(pid)
        self.spent += self._price
        return self.private

    def memory(self) -> ResidentMemory:
        return ResidentMemory(self, lambda: self.now, lambda: self.spent)


def test_what_forked_processes_share_is_counted_once() -> None:
    walks = Walks(private=10)
    memory = walks.memory()
    loaders = [stat(pid, parent=1, resident=1000) for pid in (2, 3)]
    assert memory.pages([by_pid(stat(1, resident=1200), *loaders), by_pid(stat(9, resident=70)), {}]) == [1220, 70, 0]
    assert walks.walked == [2, 3]
    loaders = [stat(pid, parent=1, resident=1020) for pid in (2, 3)]
    assert memory.pages([by_pid(stat(1, resident=1200), *loaders)]) == [1260]  # by what they have grown
    assert walks.walked == [2, 3]
    loaders = [stat(2, parent=1, resident=1500), loaders[1]]
    assert memory.pages([by_pid(stat(1, resident=1600), *loaders)]) == [1640]
    assert walks.walked == [2, 3, 2]
    walks.now += MAX_WALK_AGE
    memory.pages([by_pid(stat(1, resident=1600), *loaders)])
    assert walks.walked[3:] == [2, 3]


def test_walks_take_no_more_than_their_share() -> None:
    walks = Walks(private=10, price=0.06)
    memory = walks.memory()
    loaders = by_pid(stat(1, resident=5000), *(stat(pid, resident=100) for pid in range(2, 12)))
    assert memory.pages([loaders]) == [5020]
    assert len(walks.walked) == 2
    walks.now += 2.0
    memory.pages([loaders])
    assert len(walks.walked) == 2
    for _ in range(200):
        walks.now += 2.0
        memory.pages([loaders])
    assert walks.spent <= 0.1 + 0.06 + 0.002 * walks.now
    assert set(walks.walked) == set(range(2, 12))


V2 = "0::/a/b\n"
V1 = "7:memory:/a/b\n6:cpuacct:/a\n5:cpu:/a\n0::/\n"


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_limits_of_version_2(tmp_path: Path) -> None:
    put(tmp_path, a__b__cpu_dot_max="max 100000\n", a__cpu_dot_max="150000 100000\n")
    put(tmp_path, a__cpu_dot_stat="usage_usec 2500000\nuser_usec 1\n", a__b__memory_dot_max="max\n")
    put(
        tmp_path,
        a__memory_dot_max="1000\n",
        a__memory_dot_current="900\n",
        a__memory_dot_stat="anon 5\ninactive_file 300\n",
    )
    cpu, memory = cpu_limit(V2, tmp_path), memory_limit(V2, tmp_path)
    assert cpu is not None
    assert memory is not None
    assert (cpu.maximum, cpu.used()) == (1.5, 2.5)
    assert (memory.maximum, memory.used()) == (1000, 600)


def test_limits_of_version_1(tmp_path: Path) -> None:
    put(tmp_path, cpu__a__cpu_dot_cfs_quota_us="50000\n", cpu__a__cpu_dot_cfs_period_us="100000\n")
    put(
        tmp_path,
        cpuacct__a__cpuacct_dot_usage="3000000000\n",
        memory__a__b__memory_dot_limit_in_bytes="9223372036854771712\n",
    )
    put(tmp_path, memory__memory_dot_limit_in_bytes="4000\n", memory__memory_dot_usage_in_bytes="1000\n")
    put(tmp_path, memory__memory_dot_stat="inactive_file 1\ntotal_inactive_file 100\n")
    cpu, memory = cpu_limit(V1, tmp_path), memory_limit(V1, tmp_path)
    assert cpu is not None
    assert memory is not None
    assert (cpu.maximum, cpu.used()) == (0.5, 3.0)
    assert (memory.maximum, memory.used()) == (4000, 900)


def test_in_a_container_the_mount_is_its_cgroup(tmp_path: Path) -> None:
    put(tmp_path, memory_dot_max="2000\n", memory_dot_current="500\n", cpu_dot_max="200000 100000\n")
    for text in ("0::/\n", "0::/../../kubepods/pod1\n", "0::/docker/4f\n"):
        memory, cpu = memory_limit(text, tmp_path), cpu_limit(text, tmp_path)
        assert memory is not None
        assert cpu is not None
        assert (memory.maximum, memory.used(), cpu.maximum) == (2000, 500, 2.0)


def test_without_limits(tmp_path: Path) -> None:
    assert cpu_limit("", tmp_path) is memory_limit("", tmp_path) is None
    put(tmp_path, cpu__a__cpu_dot_cfs_quota_us="-1\n", cpu__a__cpu_dot_cfs_period_us="100000\n")
    assert cpu_limit(V1, tmp_path) is None


def test_the_host_is_the_machine_or_the_container(tmp_path: Path) -> None:
    machine = HostUsageReader(cgroups=tmp_path / "none").read()
    assert machine.cpu_limit == len(os.sched_getaffinity(0))
    assert 0 < machine.memory < machine.memory_limit
    put(tmp_path, proc__self__cgroup="0::/\n", groups__memory_dot_max=f"{100 * MIB}\n")
    put(tmp_path, groups__memory_dot_current=f"{60 * MIB}\n", groups__cpu_dot_max="50000 100000\n")
    put(tmp_path, groups__cpu_dot_stat="usage_usec 7000000\n")
    container = HostUsageReader(tmp_path / "proc", tmp_path / "groups").read()
    assert container[:4] == (7.0, 0.5, 60 * MIB, 100 * MIB)


def test_which_interfaces_count(tmp_path: Path) -> None:
    for below in ("eth0/device", "eth1/device", "bond0/lower_eth0", "docker0/lower_veth1", "veth1/x", "lo/x"):
        (tmp_path / below).mkdir(parents=True)
    names = ["lo", "eth0", "eth1", "bond0", "docker0", "veth1"]
    assert [name for name, counts in interfaces_that_count(tmp_path, names).items() if counts] == ["eth0", "eth1"]
    names = ["lo", "veth1", "docker0"]
    assert [name for name, counts in interfaces_that_count(tmp_path, names).items() if counts] == ["veth1"]


# ---- GPUs


class NvmlError(Exception):
    """As pynvml.NVMLError."""


class FakeNvml:
    """As much of pynvml as is used: two GPUs, the second does not tell how busy it is; and one that is lost."""

    NVMLError = NvmlError

    def __init__(self, driver: bool = True) -> None:
        self.driver = driver

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NvmlError

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise NvmlError
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}a7e"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"H100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=(handle + 1) * MIB, total=80 * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            raise NvmlError
        return SimpleNamespace(gpu=75, memory=3)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [SimpleNamespace(pid=41, usedGpuMemory=None), SimpleNamespace(pid=50 + handle, usedGpuMemory=MIB)]


def readings() -> list[GpuReading]:
    return list(open_gpus(lambda _name: FakeNvml()).read())


def test_what_nvml_tells() -> None:
    assert readings() == [
        GpuReading(0, "GPU-0a7e", "H100", 0.75, MIB, 80 * MIB, {50: MIB}),
        GpuReading(1, "GPU-1a7e", "H100", None, 2 * MIB, 80 * MIB, {51: MIB}),
    ]


def test_a_host_without_the_package_or_the_driver_says_nothing_of_gpus() -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    assert isinstance(open_gpus(missing), NoGpus)
    assert isinstance(open_gpus(lambda _name: FakeNvml(driver=False)), NoGpus)
    assert list(NoGpus().read()) == []


@pytest.mark.parametrize(
    ("processes", "assigned", "found"),
    [
        pytest.param({7: None, 51: None}, "0", [1], id="has-memory-there"),
        pytest.param({7: None}, "0", [0], id="number"),
        pytest.param({7: None}, "GPU-1a", [1], id="id"),
        pytest.param({7: None}, "", [], id="none"),
        pytest.param({7: None}, "0,1", [], id="all-of-the-host"),
    ],
)
def test_the_gpus_of_a_worker(processes: dict[int, None], assigned: str, found: list[int]) -> None:
    assert [gpu.index for gpu in gpus_of(processes, assigned, readings())] == found


class OwnGpu:
    """A GPU on which a process has memory."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self) -> list[GpuReading]:
        return [GpuReading(0, "GPU-0", "H100", 0.5, 3 * MIB, 80 * MIB, {self._pid: 2 * MIB})]


# ---- real processes

BURN = """
import mmap, os, sys, time
held = bytearray(b"1") * (200 << 20)
def burn(share):
    while True:
        began = time.process_time()
        while time.process_time() - began < 0.02 * share: pass
        time.sleep(0.02 * (1 - share))
if os.fork() == 0: burn(0.25)
print("ready", flush=True)
burn(0.25)
"""


@contextmanager
def worker(code: str) -> Iterator[int]:
    """A process that leads a session, and has printed that it is ready."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_worker_and_its_child_as_they_are_sampled() -> None:
    """Their processor time is compared with what the kernel has counted for the session, read in another way."""
    import psutil

    with worker(BURN) as pid:
        sampler = Sampler(gpus=OwnGpu(pid))
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]

        def read() -> tuple[float, float]:
            return time.monotonic(), sum(sum(each.cpu_times()[:2]) for each in tree)

        before_first = read()
        (usage,) = sampler.sample([WorkerPlace(1, pid)]).workers.values()
        after_first = read()
        assert not usage.HasField("cpu_cores")
        until(lambda: read()[1] >= after_first[1] + 0.3, "they use the processor")
        before_second = read()
        sample = sampler.sample([WorkerPlace(1, pid), WorkerPlace(2, 2**22 + 1)])
        after_second = read()
        assert list(sample.workers) == [1]
        usage = sample.workers[1]
        assert usage.processes == 2
        ticks = 0.05  # the kernel counts in hundredths of a second, of two processes, at both ends
        assert before_second[1] - ticks <= usage.cpu_seconds <= after_second[1] + ticks
        least = (before_second[1] - after_first[1] - ticks) / (after_second[0] - before_first[0])
        most = (after_second[1] - before_first[1] + ticks) / (before_second[0] - after_first[0])
        assert least <= usage.cpu_cores <= most
        assert 200 * MIB < usage.resident_bytes < 240 * MIB  # 400 and more, if what they share counted twice
        assert (list(usage.gpus), usage.gpu_utilization, usage.gpu_memory_bytes) == ([0], 0.5, 2 * MIB)
        assert [worker_id for worker_id, _ in sample.processes.values()] == [1]
        assert sample.host.cpu_cores > 0
        assert (sample.host.gpu_memory_bytes, sample.host.gpu_memory_limit_bytes) == (3 * MIB, 80 * MIB)
    assert sampler.sample([WorkerPlace(1, pid)]).workers == {}


def test_memory_of_its_own_and_processes_that_have_ended() -> None:
    held = b"1" * (8 * MIB)
    pages = private_pages(os.getpid())
    assert pages is not None
    assert pages * PAGE_BYTES > len(held)
    assert private_pages(2**22 + 1) is None
    child = multiprocessing.get_context("spawn").Process(target=int)
    child.start()
    assert child.pid is not None
    child.join()
    assert ended_among([os.getpid(), child.pid]) == [child.pid]


# ---- what is told


def sample_of(cores: float = 1.0, resident: int = 100 * MIB, host: float = 1.0, **more: Any) -> Sample:
    usage = resources_pb2.WorkerUsage(cpu_cores=cores, cpu_seconds=5.0, resident_bytes=resident, processes=1)
    return Sample(resources_pb2.HostUsage(cpu_cores=host, **more), {1: usage})


def test_only_what_has_changed_noticeably_is_told() -> None:
    now = [0.0]
    changes = UsageChanges(lambda: now[0])
    assert changes.of(sample_of()) == sample_of()
    nothing = Sample(resources_pb2.HostUsage(), {})
    assert changes.of(sample_of(cores=1.01, resident=100 * MIB + 5000, host=0.99)) == nothing
    assert list(changes.of(sample_of(cores=1.1)).workers) == [1]
    assert list(changes.of(sample_of(cores=1.1, resident=120 * MIB)).workers) == [1]
    assert changes.of(sample_of(cores=1.1, resident=120 * MIB, memory_kills=1)).host.memory_kills == 1
    now[0] += REFRESH_INTERVAL
    assert list(changes.of(sample_of(cores=1.1, resident=120 * MIB)).workers) == [1]
    changes.forget()
    assert list(changes.of(sample_of(cores=1.1, resident=120 * MIB)).workers) == [1]


def test_in_a_large_run_it_is_told_once_in_a_period_however_it_changes() -> None:
    now = [0.0]
    changes = UsageChanges(lambda: now[0])
    told = []
    for second in range(0, 24, 2):
        now[0] = float(second)
        sample = changes.of(sample_of(cores=float(second), host=float(second)), 10.0)
        told += [second] if sample.host.ByteSize() and sample.workers else []
        assert bool(sample.host.ByteSize()) is bool(sample.workers)
    assert told == [0, 10, 20]


def test_heartbeats_take_it_along_once() -> None:
    reports = UsageReports(lambda: 0.0)
    beat = agent_pb2.Heartbeat(workers=[agent_pb2.WorkerHeartbeat(worker_id=1, pid=7)])
    reports.add_to(beat)
    assert not beat.HasField("usage")
    reports.take(sample_of())
    reports.add_to(beat)
    assert (beat.usage.cpu_cores, len(beat.workers), beat.workers[0].usage.cpu_cores) == (1.0, 1, 1.0)
    later = agent_pb2.Heartbeat()
    reports.add_to(later)
    reports.take(sample_of(cores=2.0))
    reports.add_to(later)
    assert not later.HasField("usage")
    assert [(each.worker_id, each.usage.cpu_cores) for each in later.workers] == [(1, 2.0)]
