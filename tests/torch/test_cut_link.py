"""RoundGroup over a network that is cut: nothing arrives any more, not even the news of it."""

from __future__ import annotations

from tests.linked_hosts import linked_hosts
from tests.torch.group_ranks import assignment, build, members


def test_a_collective_over_a_cut_link_is_freed_on_both_sides_and_the_rest_go_on() -> None:
    with linked_hosts(3) as hosts, members(3, hosts) as (a, b, lonely):
        build([a, b, lonely], 1)
        for member in (a, b, lonely):
            member.begin("train_step")
        assert [member.end().value for member in (a, b, lonely)] == [1.0, 1.0, 1.0]
        hosts[2].cut()
        for member in (a, b, lonely):
            member.begin("all_reduce")
        outcomes = [member.sever(1) for member in (a, b, lonely)]
        for member in (a, b):
            member.call("teardown")
        build([b, a], 2)
        b.begin("all_reduce")
        assert a.call("all_reduce") == 2.0
    assert all(outcome.looks_lost for outcome in outcomes), outcomes


def test_building_is_given_up_when_a_member_is_cut_off() -> None:
    with linked_hosts(3) as hosts, members(3, hosts) as group:
        hosts[2].cut()
        for rank, member in enumerate(group):
            step = "torch_groups.init" if rank != 2 else "StoreClient.connect"
            member.call("announce", step)
            member.begin("build", assignment(1, rank, group[0].store, 3))
            member.wait_for(step)
        outcomes = [member.sever(1) for member in group]
        build(group[:2], 2)
    assert all(outcome.raised_peer_lost for outcome in outcomes), outcomes


def test_building_is_given_up_when_the_store_is_cut_off() -> None:
    with linked_hosts(3) as hosts, members(3, hosts) as group:
        hosts[0].cut()
        for rank, member in enumerate(group[1:], start=1):
            member.call("announce", "StoreClient.connect")
            member.begin("build", assignment(1, rank, group[0].store, 3))
            member.wait_for("StoreClient.connect")
        outcomes = [member.sever(1) for member in group[1:]]
        build(group[1:], 2)
    assert all(outcome.raised_peer_lost for outcome in outcomes), outcomes


def test_building_is_given_up_when_the_link_is_cut_between_store_and_mesh() -> None:
    with linked_hosts(2) as hosts, members(2, hosts) as group:
        for rank, member in enumerate(group):
            member.call("pause_before_the_mesh")
            member.begin("build", assignment(1, rank, group[0].store, 2))
        for member in group:
            member.wait_for("the mesh")
        hosts[1].cut()
        for member in group:
            member.go_on()
        outcomes = [member.sever(1) for member in group]
    assert all(outcome.raised_peer_lost for outcome in outcomes), outcomes
