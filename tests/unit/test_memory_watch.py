"""What the kernel's files say of processes that it has killed for want of memory; texts as recorded from machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.agent.health.memory_watch import END_BOUND, LOOK_INTERVAL, MemoryWatch
from edriver.system.cgroups import kills_in, memory_groups
from edriver.v1.cause_pb2 import CAUSE_KIND_MAYBE_OUT_OF_MEMORY, CAUSE_KIND_OUT_OF_MEMORY, Cause

V2 = "0::/kubepods.slice/pod7.slice/worker.scope\n"
V1 = "9:name=systemd:/\n5:cpu,cpuacct:/a\n4:memory:/docker/4f\n0::/\n"
EVENTS = "low 0\nhigh 0\nmax 1254\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 1\noom_kill {}\nnuma_hit 7\n"


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        pytest.param(EVENTS.format(2), 2, id="v2"),
        pytest.param(CONTROL.format(1), 1, id="v1"),
        pytest.param(VMSTAT.format(12), 12, id="machine"),
        pytest.param("oom_kill_disable 0\nunder_oom 0\n", None, id="old-kernel"),
        pytest.param("", None, id="empty"),
    ],
)
def test_kills(tmp_path: Path, text: str, kills: int | None) -> None:
    (tmp_path / "counts").write_text(text)
    assert kills_in(tmp_path / "counts") == kills


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        pytest.param("2147483648\n", 2 << 30, id="set"),
        pytest.param("max\n", None, id="v2-none"),
        pytest.param("9223372036854771712\n", None, id="v1-none"),
    ],
)
def test_limit(tmp_path: Path, text: str, limit: int | None) -> None:
    (tmp_path / "memory.max").write_text(text)
    (group,) = memory_groups("0::/\n", tmp_path)
    assert group.limit() == limit


def test_where_the_files_are(tmp_path: Path) -> None:
    lowest, in_v1 = tmp_path / "kubepods.slice/pod7.slice/worker.scope", tmp_path / "memory/docker/4f"
    lowest.mkdir(parents=True)
    in_v1.mkdir(parents=True)
    v2 = [(group.folder, group.files.kills) for group in memory_groups(V2, tmp_path)]
    assert v2 == [(folder, "memory.events") for folder in (lowest, lowest.parent, lowest.parent.parent, tmp_path)]
    v1 = [(group.folder, group.files.kills) for group in memory_groups(V1, tmp_path)][1:]
    assert v1 == [(folder, "memory.oom_control") for folder in (in_v1, in_v1.parent, in_v1.parent.parent)]


class Machine:
    """A machine's files, in a folder."""

    def __init__(self, folder: Path, cgroup: str, events: Path) -> None:
        self.proc, self.root = folder / "proc", folder / "cgroup"
        self.events = self.root / events
        (self.proc / "7").mkdir(parents=True)
        (self.proc / "7" / "cgroup").write_text(cgroup)
        self.events.parent.mkdir(parents=True)
        self.now = 0.0
        self.kills(0, 0)

    def kills(self, here: int, machine: int) -> None:
        text = CONTROL if self.events.name == "memory.oom_control" else EVENTS
        self.events.write_text(text.format(here))
        (self.proc / "vmstat").write_text(VMSTAT.format(machine))

    def watch(self) -> MemoryWatch:
        return MemoryWatch(7, self.proc, self.root, lambda: self.now)


LAYOUTS = [
    pytest.param(V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"), "memory.max", id="v2"),
    pytest.param("0::/../../host/path\n", Path("memory.events"), "memory.max", id="v2-in-a-container"),
    pytest.param(V1, Path("memory/docker/4f/memory.oom_control"), "memory.limit_in_bytes", id="v1"),
]


@pytest.mark.parametrize(("cgroup", "events", "limit"), LAYOUTS)
def test_a_kill_for_want_of_memory(tmp_path: Path, cgroup: str, events: Path, limit: str) -> None:
    machine = Machine(tmp_path, cgroup, events)
    machine.kills(3, 9)
    watch = machine.watch()
    assert watch.verdict() is None
    (machine.proc / "7" / "cgroup").unlink()  # it has been reaped
    machine.kills(4, 10)
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY)
    (machine.events.parent / limit).write_text(f"{512 << 20}\n")
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY, memory_limit=512 << 20)


def test_an_earlier_kill_of_another_process_is_not_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"))
    watch = machine.watch()
    machine.kills(1, 1)
    watch.sample()
    machine.now += END_BOUND
    watch.sample()
    assert watch.verdict() is None


def test_a_look_between_the_kill_and_the_end_changes_nothing(tmp_path: Path) -> None:
    """The kernel counts a kill, then takes the process's memory back, takes it out of its cgroup, and lets it end."""
    machine = Machine(tmp_path, V1, Path("memory/docker/4f/memory.oom_control"))
    watch = machine.watch()
    machine.kills(1, 1)
    watch.sample()
    (machine.proc / "7" / "cgroup").write_text("4:memory:/\n")
    watch.sample()
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY)


def test_the_limit_may_be_that_of_a_cgroup_above(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"))
    (machine.events.parent / "memory.max").write_text("max\n")
    (machine.events.parent.parent / "memory.max").write_text(f"{100 << 20}\n")
    watch = machine.watch()
    machine.kills(1, 1)
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY, memory_limit=100 << 20)


def test_without_a_cgroup_the_machine_is_asked(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "", Path("elsewhere/memory.events"))
    watch = machine.watch()
    assert watch.verdict() is None
    machine.kills(0, 1)
    assert watch.verdict() == Cause(kind=CAUSE_KIND_MAYBE_OUT_OF_MEMORY)


def test_it_looks_no_more_often_than_it_has_to(tmp_path: Path) -> None:
    """A count is an older kill's once it has lasted for END_BOUND from the first look that has seen it."""
    machine = Machine(tmp_path, V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"))
    watch = machine.watch()
    watch.sample()
    machine.kills(1, 1)
    machine.now += LOOK_INTERVAL / 2
    watch.sample()  # does not read it
    machine.now += END_BOUND
    watch.sample()
    assert watch.verdict() is not None
    machine.now += END_BOUND
    watch.sample()
    assert watch.verdict() is None


def test_a_cgroup_is_left_alone_while_the_machine_counts_no_kill(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"))
    machine.kills(1, 1)
    watch = machine.watch()
    machine.events.unlink()
    for _ in range(2):
        machine.now += END_BOUND
        watch.sample()
    machine.kills(2, 2)
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY)


def test_a_kernel_that_counts_no_kills_of_the_machine_may_count_those_of_cgroups(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"))
    (machine.proc / "vmstat").unlink()
    watch = machine.watch()
    machine.events.write_text(EVENTS.format(1))
    watch.sample()
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY)
    machine.now += END_BOUND
    watch.sample()
    assert watch.verdict() is None


def test_a_process_may_be_moved_to_another_cgroup(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2, Path("kubepods.slice/pod7.slice/worker.scope/memory.events"))
    watch = machine.watch()
    other = machine.root / "other" / "memory.events"
    other.parent.mkdir()
    other.write_text(EVENTS.format(5))
    (machine.proc / "7" / "cgroup").write_text("0::/other\n")
    for _ in range(2):
        machine.now += END_BOUND
        watch.sample()
    assert watch.verdict() is None
    other.write_text(EVENTS.format(6))
    assert watch.verdict() == Cause(kind=CAUSE_KIND_OUT_OF_MEMORY)


def test_the_folders_of_a_cgroup_are_looked_for_once(tmp_path: Path) -> None:
    (tmp_path / "pod/worker").mkdir(parents=True)
    text = "0::/pod/worker\n"
    found = [group.folder for group in memory_groups(text, tmp_path)]
    (tmp_path / "pod/worker").rmdir()
    assert [group.folder for group in memory_groups(text, tmp_path)] == found
