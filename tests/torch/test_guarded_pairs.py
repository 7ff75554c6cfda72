"""In a guarded round a stranger that comes before the members gets no connection of a group."""

from __future__ import annotations

import dataclasses
import select
import socket
import struct
from collections.abc import Sequence

import pytest

from edriver.model.plan import Assignment
from edriver.system import sockets
from tests.torch.group_ranks import Member, Outcome, assignment, members
from tests.torch.group_strangers import answer_all, hang_up, say_nothing, strangers
from tests.torch.tcp_filters import BOTH_WAYS, NO_OPTION

LIMIT_SECONDS = 30.0


def guarded(round_number: int, rank: int, group: Sequence[Member]) -> Assignment:
    return dataclasses.replace(assignment(round_number, rank, group[0].store, len(group)), guarded=True)


def build_guarded(group: Sequence[Member], round_number: int = 1) -> list[Outcome]:
    for rank, member in enumerate(group):
        member.begin("build", guarded(round_number, rank, group))
    return [member.end() for member in group]


def sums(group: Sequence[Member], command: str = "all_reduce") -> list[Outcome]:
    for member in group:
        member.begin(command)
    return [member.end() for member in group]


@pytest.mark.parametrize("filters", BOTH_WAYS)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("behave", [answer_all, say_nothing, hang_up])
def test_strangers_who_come_before_all_members_get_nothing(behave: object, size: int, filters: bool) -> None:
    with members(size) as group:
        for member in group:
            if not filters:
                member.call("take_filters_away")
            member.call("pause_before_the_mesh")
        for rank, member in enumerate(group):
            member.begin("build", guarded(1, rank, group))
        for member in group:
            member.wait_for("the mesh")
        with strangers(group, behave):  # type: ignore[arg-type]
            for member in group:
                member.go_on()
            assert [member.end().error for member in group] == [""] * size
            assert sums(group) == [Outcome(float(size))] * size


def test_all_groups_of_a_guarded_round_are_guarded_and_the_next_round_need_not_be() -> None:
    with members(3) as group:
        assert [outcome.error for outcome in build_guarded(group)] == ["", "", ""]
        assert sums(group, "several_groups") == [Outcome(1.0), Outcome(3.0), Outcome(3.0)]
        for member in group:
            member.call("teardown")
        for rank, member in enumerate(group):
            member.begin("build", assignment(2, rank, group[0].store, 3))
        assert [member.end().error for member in group] == ["", "", ""]
        assert sums(group) == [Outcome(3.0)] * 3


def test_a_member_that_waits_for_one_that_never_connects_is_freed() -> None:
    with members(3) as group:
        for rank, member in enumerate(group):
            member.call("pause_before_the_mesh")
            member.begin("build", guarded(1, rank, group))
        for member in group:
            member.wait_for("the mesh")
        for member in group[:2]:
            member.go_on()
        outcomes = [member.sever(1) for member in group[:2]]
    assert all(outcome.raised_peer_lost for outcome in outcomes), outcomes


@pytest.mark.parametrize("filters", BOTH_WAYS)
def test_a_connection_is_not_readable_until_it_is_heard(monkeypatch: pytest.MonkeyPatch, filters: bool) -> None:
    if not filters:
        monkeypatch.setattr(sockets, "_SO_ATTACH_FILTER", NO_OPTION)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets.hold_back(listener)
        with socket.create_connection(listener.getsockname()) as caller:
            heard, _ = listener.accept()
            with heard:
                caller.sendall(struct.pack("=q", 1))  # loopback delivers it before this returns
                assert select.select([heard], [], [], 0.0)[0] == []
                sockets.hear(heard)
                assert select.select([heard], [], [], LIMIT_SECONDS)[0] == [heard]
                assert heard.recv(8) == struct.pack("=q", 1)
