"""Kills of what workers have started, for want of memory."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from edriver.agent.health.memory_kills import KillCount, MemoryKills
from edriver.agent.health.memory_watch import END_BOUND
from edriver.v1 import agent_pb2

EVENTS = "low 0\noom 3\noom_kill {}\n"


class Host:
    """A host with two workers, 1 and 2, and what its kernel counts."""

    def __init__(self, folder: Path, counted: bool = True) -> None:
        self.proc, self.root = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.root.mkdir()
        self._counted = counted
        self.kills(3)
        (self.root / "memory.max").write_text("4096\n")
        (self.proc / str(os.getpid())).mkdir()
        (self.proc / str(os.getpid()) / "cgroup").write_text("0::/\n")
        self.ended: set[int] = set()
        self.told: list[tuple[int, int]] = []
        self.messages: list[agent_pb2.MemoryKill] = []
        self.now = 0.0
        self.watch = MemoryKills(self._tell, self._ended_among, KillCount(self.proc, self.root), lambda: self.now)
        self.watch.note({11: (1, 500), 12: (1, 900), 21: (2, 700)})

    def _tell(self, kill: agent_pb2.MemoryKill) -> None:
        self.told.append((kill.worker_id, kill.pid))
        self.messages.append(kill)

    def _ended_among(self, pids: Collection[int]) -> list[int]:
        return [pid for pid in pids if pid in self.ended]

    def kills(self, count: int) -> None:
        if self._counted:
            (self.root / "memory.events").write_text(EVENTS.format(count))
        (self.proc / "vmstat").write_text(f"nr_free_pages 1\noom_kill {count}\n")

    def look(self, suspect: int = 0) -> None:
        self.watch.check({1: (10, 10), 2: (20, 0)}, suspect)


def test_the_process_that_has_ended_is_named_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look()
    host.ended = {12}  # without a kill, it has just ended
    host.look()
    assert host.told == []
    host.ended = {21}
    host.kills(4)
    host.look()
    host.look()
    assert host.told == [(2, 21)]
    assert (host.messages[0].memory_limit, host.messages[0].uncertain, host.watch.total) == (4096, False, 1)


def test_of_several_the_largest_are_named(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.ended = {11, 12, 21}
    host.kills(5)
    host.look()
    assert host.told == [(1, 12), (2, 21)]


def test_a_process_that_takes_a_while_to_end(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kills(4)
    host.look()
    host.ended = {11}
    host.now += END_BOUND / 2
    host.look()
    assert host.told == [(1, 11)]


def test_later_ends_have_other_causes(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kills(4)
    host.look()
    host.now += END_BOUND
    host.ended = {11}
    host.look()
    assert host.told == []


def test_a_workers_own_end_is_told_by_its_exit(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kills(4)
    host.ended = {10, 11, 12}  # the worker was killed, and took its data loaders with it
    host.look()
    assert host.told == []
    host.watch.explained()
    host.ended = {11}
    host.look()
    assert host.told == []
    host.kills(5)
    host.look()
    assert host.told == [(1, 11)]


def test_a_worker_that_fails_at_once_is_suspected(tmp_path: Path) -> None:
    """What the kernel has killed had been started since the last sample."""
    host = Host(tmp_path)
    host.look(suspect=1)
    host.kills(4)
    host.look(suspect=1)
    assert host.told == [(1, 0)]
    host.look(suspect=2)
    assert host.told == [(1, 0)]


def test_of_a_worker_that_has_ended_the_process_is_known_if_it_was_the_only_one(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kills(4)
    host.ended = {20, 21}
    host.look(suspect=2)
    host.kills(5)
    host.ended = {10, 11, 12}
    host.look(suspect=1)
    assert host.told == [(2, 21), (1, 0)]


def test_where_no_cgroup_counts_it_is_the_machine(tmp_path: Path) -> None:
    host = Host(tmp_path, counted=False)
    host.kills(4)
    host.ended = {21}
    host.look()
    assert host.told == [(2, 21)]
    assert host.messages[0].uncertain
    assert not host.messages[0].HasField("memory_limit")
