"""RoundGroup with real processes over loopback: whatever happens to a peer, no member waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import distributed as dist

from edriver.model.ids import RoundId
from edriver.system.sockets import duplicate
from edriver.worker.backend.gloo.cutting import Cut
from edriver.worker.backend.gloo.sever import GlooDevice, gloo_devices
from edriver.worker.group.round_group import RoundGroup
from tests.torch.group_ranks import LIMIT_SECONDS, Member, Resources, assignment, build, members
from tests.torch.run_credentials import tls_credentials
from tests.torch.tcp_filters import needs_filters
from tests.unread import unread_bytes, wait_for_more

MEGABYTE = 1 << 20


def test_a_round_trains_and_the_next_one_too_with_other_ranks_and_another_size() -> None:
    with members(3) as (a, b, c):
        build([a, b, c], 1)
        for member in (a, b, c):
            member.begin("train_step")
        assert [member.end().value for member in (a, b, c)] == [1.0, 1.0, 1.0]  # the mean of the ranks 0, 1, 2
        for member in (a, b, c):
            member.call("teardown")
        assert a.call("has_pythons_excepthook")
        build([c, a], 2)
        for member in (c, a):
            member.begin("train_step")
        assert [member.end().value for member in (c, a)] == [0.5, 0.5]


def test_once_built_no_group_takes_a_connection_and_each_is_severed_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = RoundGroup("127.0.0.1")
    released: list[GlooDevice] = []
    monkeypatch.setattr(
        "edriver.worker.group.round_group.release_waiting_pairs", lambda device, _pairs: released.append(device)
    )
    before = gloo_devices().keys()
    group.build(assignment(1, 0, group.store, 1), LIMIT_SECONDS)
    try:
        dist.new_group([0])
        devices = [device for inode, device in gloo_devices().items() if inode not in before]
        assert len(devices) == 2
        for device in devices:
            listener = duplicate(device.listener.fd, device.listener.inode)
            assert listener is not None
            with listener, socket.socket() as caller:
                caller.setblocking(False)
                caller.connect_ex(listener.getsockname())
                assert caller.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x02"  # its SYN is not answered
        group.sever(RoundId(1, 1))
        assert released == []  # it would have waited for an answer
    finally:
        group.teardown()


def test_a_group_that_needs_more_descriptors_than_there_are_is_not_begun() -> None:
    group = RoundGroup("127.0.0.1")
    where = group.store
    with pytest.raises(RuntimeError, match=r"a process group of 9000000 workers needs 1800\d+ more open files, but"):
        group.build(assignment(1, 0, where, 9_000_000), LIMIT_SECONDS)
    with pytest.raises(RuntimeError, match=r"a process group of 9000000 workers needs 900\d+ more open files, but"):
        group.build(assignment(1, 1, where, 9_000_000), LIMIT_SECONDS)


def test_the_interpreters_end_destroys_no_group_that_garbage_refers_to() -> None:
    source = """
import gc, weakref
from torch import distributed as dist
from edriver.worker.group.round_group import RoundGroup

class Traceback:
    def __init__(self):
        self.itself = self
        self.group = dist.group.WORLD

gc.set_threshold(10**9)
group = RoundGroup(None)
group.build_alone()
watched = weakref.ref(dist.group.WORLD, lambda _: print("destroyed", flush=True))
Traceback()
group.teardown()
"""
    done = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert done.stdout == "", "its destructor waits for threads, which may hang"


def test_a_world_of_one_trains() -> None:
    with members(1) as (alone,):
        alone.call("build_alone")
        assert alone.call("train_step") == 0.0
        alone.call("teardown")
        alone.call("build_alone")


def test_a_killed_peer_frees_members_that_are_not_its_neighbours_once_severed() -> None:
    with members(4) as group:
        build(group, 1)
        for member in group[:3]:
            member.begin("all_reduce")
        group[3].kill()
        outcomes = [member.sever(1) for member in group[:3]]
    assert all(outcome.looks_lost for outcome in outcomes), outcomes


def test_a_stopped_peer_frees_the_rest_once_severed_and_they_go_on_without_it() -> None:
    with members(3) as (a, b, stopped):
        build([a, b, stopped], 1)
        stopped.signal(signal.SIGSTOP)
        for member in (a, b):
            member.begin("all_reduce")
        outcomes = [member.sever(1) for member in (a, b)]
        stopped.kill()
        for member in (a, b):
            member.call("teardown")
        build([b, a], 2)
        b.begin("all_reduce")
        assert a.call("all_reduce") == 2.0
    assert all(outcome.looks_lost for outcome in outcomes), outcomes


@needs_filters
def test_a_send_to_a_peer_that_has_asked_for_it_and_died_is_freed_once_severed() -> None:
    """Two sends: the first one that reaches the dead peer's system is answered by a reset, the second would fail."""
    with members(2) as (root, peer):
        build([root, peer], 1)
        for _ in range(2):
            root.call("start_broadcast")
        root.begin("end_broadcasts")
        root.signal(signal.SIGSTOP)
        for _ in range(2):
            before = max(unread_bytes(root.pid))
            peer.call("start_broadcast")
            wait_for_more(root.pid, before)
        peer.kill()
        root.signal(signal.SIGCONT)
        outcome = root.sever(1)
    assert outcome.looks_lost or not outcome.error, outcome  # a send ends once it is in the system's buffer


def test_a_hanging_subgroup_is_freed_too() -> None:
    with members(3) as group:
        build(group, 1)
        for member in group:
            member.begin("new_group")
        assert [member.end().error for member in group] == ["", "", ""]
        for member in group[:2]:
            member.begin("all_reduce_in_subgroup")
        outcomes = [member.sever(1) for member in group[:2]]
    assert all(outcome.looks_lost for outcome in outcomes), outcomes


def test_a_subgroup_that_waits_for_a_missing_member_is_given_up() -> None:
    with members(3) as group:
        build(group, 1)
        for member in group[:2]:
            member.begin("new_group")
        outcomes = [member.sever(1) for member in group[:2]]
    assert all(outcome.looks_lost for outcome in outcomes), outcomes


@pytest.mark.parametrize("missing", [0, 2])
def test_building_with_a_rank_missing_is_given_up_once_severed(missing: int) -> None:
    with members(3) as group:
        present = [rank for rank in range(3) if rank != missing]
        for rank in present:
            group[rank].call("announce", "torch_groups.init")
            group[rank].begin("build", assignment(1, rank, group[0].store, 3))
        for rank in present:
            group[rank].wait_for("torch_groups.init")
        outcomes = [group[rank].sever(1) for rank in present]
        build(group, 2)  # nothing is left in those that would tell them from the one that was missing
    assert all(outcome.raised_peer_lost for outcome in outcomes), outcomes


def test_building_with_a_rank_that_publishes_its_address_and_never_connects_is_given_up() -> None:
    # Of two ranks the one with the lower port waits to be connected to. That is for the system to choose: in eight
    # rounds rank 0 will have been that one. Where it is the other, it connects, and may be done before it is severed:
    # then it is its first step that is given up.
    gave_up_building = 0
    for round_number in range(1, 9):
        with members(2) as (waiting, halting):
            where = assignment(round_number, 0, waiting.store, 2)
            halting.begin("build_halting", assignment(round_number, 1, waiting.store, 2))
            waiting.call("wait_until_published", where)
            waiting.call("spare_the_store")
            waiting.call("announce", "torch_groups.init")
            waiting.begin("build", where)
            waiting.wait_for("torch_groups.init")
            outcome = waiting.sever(round_number)
            gave_up_building += outcome.raised_peer_lost
            if not outcome.error:
                waiting.begin("train_step")
                outcome = waiting.sever(round_number)
        assert outcome.raised_peer_lost or outcome.looks_lost, outcome
    assert gave_up_building


def test_building_with_a_stopped_rank_0_is_given_up_once_severed() -> None:
    with members(2) as (stopped, member):
        stopped.signal(signal.SIGSTOP)
        member.call("announce", "torch_groups.init")
        member.begin("build", assignment(1, 1, stopped.store, 2))
        member.wait_for("torch_groups.init")
        outcome = member.sever(1)
        assert outcome.raised_peer_lost, outcome
        build([member], 2)


def test_building_with_a_dead_rank_0_fails_without_waiting_to_be_severed() -> None:
    with members(2) as (dead, member):
        dead.kill()
        member.begin("build", assignment(1, 1, dead.store, 2))
        outcome = member.end()
    assert outcome.raised_peer_lost, outcome
    assert "ConnectionRefusedError" in outcome.error


def test_a_round_severed_before_its_group_is_built_is_never_built() -> None:
    with members(1) as (member,):
        assert member.sever_once(3) == (0, 0)
        for older in (2, 3):
            member.begin("build", assignment(older, 0, member.store, 1))
            outcome = member.end()
            assert outcome.raised_peer_lost, outcome
        build([member], 4)


def test_severing_an_older_round_leaves_the_running_one_alone() -> None:
    with members(2) as group:
        build(group, 2)
        assert group[0].sever_once(1) == (0, 0)
        group[1].begin("all_reduce")
        assert group[0].call("all_reduce") == 2.0
        assert sum(group[0].sever_once(2)) > 0


def test_data_loader_children_of_a_killed_peer_do_not_keep_the_others_waiting() -> None:
    with members(3) as group, contextlib.ExitStack() as orphans:
        build(group, 1)
        for pid in group[2].call("open_loader"):
            orphans.callback(_kill, pid)
        for member in group[:2]:
            member.begin("all_reduce")
        group[2].kill()
        outcomes = [member.sever(1) for member in group[:2]]
    assert all(outcome.looks_lost for outcome in outcomes), outcomes


def test_connections_that_are_not_the_rounds_survive(tmp_path: Path) -> None:
    with members(2) as group:
        for rank, member in enumerate(group):
            member.begin("open_foreign_connections", str(tmp_path / "store"), rank, 2)
        assert [member.end().error for member in group] == ["", ""]
        build(group, 1)
        group[0].begin("all_reduce")
        outcome = group[0].sever(1)
        assert outcome.looks_lost, outcome
        for member in group:
            member.begin("use_foreign_connections")
        kinds = ["PlainTcp", "AsyncioTcp", "GrpcTcp", "GlooGroup"]
        outcomes = [member.end() for member in group]
    assert [outcome.value for outcome in outcomes] == [kinds, kinds], outcomes


@pytest.mark.long_except("plain-stores")
@pytest.mark.parametrize("secure", [False, True], ids=["plain-stores", "stores-over-tls"])
def test_two_hundred_rounds_leave_no_descriptors_threads_or_memory_behind(tmp_path: Path, secure: bool) -> None:
    with members(3, tls_credentials=tls_credentials(tmp_path / "papers") if secure else None) as group:
        found: dict[int, list[Resources]] = {}
        for round_number in range(1, 201):
            build(group, round_number)
            for member in group:
                member.begin("train_step")
            assert [member.end().value for member in group] == [1.0, 1.0, 1.0]
            if round_number % 2:
                _hang_and_sever(group[:2], round_number)
            for member in group:
                member.call("teardown")
            if round_number in (40, 200):
                for member in group:
                    member.call("teardown")  # waits for the one before
                found[round_number] = [member.call("count_resources") for member in group]
    for early, late in zip(found[40], found[200], strict=True):
        # Gloo's threads close sockets, and a joined thread goes, a moment later; a leak would be of 160.
        assert late.descriptors < early.descriptors + 10
        assert late.threads < early.threads + 10
        assert late.resident < early.resident + 16 * MEGABYTE, "160 rounds leave 0.1 MB each"


def test_a_group_of_the_scripts_own_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with members(1) as (member,):
        member.call("init_by_hand", str(tmp_path / "store"))
        member.begin("build", assignment(1, 0, member.store, 1))
        outcome = member.end()
    assert outcome.error.startswith("RuntimeError: a default process group exists already")
    assert "remove init_process_group from the script" in outcome.error


def _hang_and_sever(group: list[Member], round_number: int) -> None:
    for member in group:
        member.begin("all_reduce")
    for member in group:
        assert member.sever(round_number).looks_lost


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Stubborn(RoundGroup):
    """One whose old groups take for ever to tear down."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.yielding = threading.Event()

    def _dispose(self, held: list[object], cut: Callable[[], Cut] | None) -> None:
        self.yielding.wait(LIMIT_SECONDS)
        super()._dispose(held, cut)


def test_a_group_that_cannot_be_torn_down_holds_up_no_later_round(caplog: pytest.LogCaptureFixture) -> None:
    group = Stubborn()
    for round_number in range(1, 4):
        group.teardown()
        group.build(assignment(round_number, 0, group.store, 1), LIMIT_SECONDS)
        assert dist.get_world_size() == 1
    group.teardown()
    group.yielding.set()
    assert [record.getMessage() for record in caplog.records] == [
        "a group of an earlier round cannot be torn down: one of its threads is left behind"
    ] * 2
