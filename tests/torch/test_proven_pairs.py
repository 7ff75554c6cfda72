"""A stranger that is faster than a member gets a connection of a group, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.torch.group_ranks import LIMIT_SECONDS, Outcome, assignment, build, first_to_end, members
from tests.torch.group_strangers import answer_all, hang_up, say_nothing, strangers


@pytest.mark.parametrize(
    ("behave", "how"),
    [(answer_all, "the proof is wrong"), (say_nothing, "not within 1 s"), (hang_up, " by peer")],
)
def test_a_stranger_in_a_members_place_ends_the_round_and_the_next_one_is_built(
    behave: Callable[[socket.socket], None], how: str
) -> None:
    with members(2) as group:
        for member in group:
            member.call("bound_proofs", 1.0)
            member.call("pause_before_the_mesh")
        for rank, member in enumerate(group):
            member.begin("build", assignment(1, rank, group[0].store, 2))
        for member in group:
            member.wait_for("the mesh")
        with strangers(group, behave) as addresses:
            for member in group:
                member.go_on()
            outcomes = [member.end() for member in group]
        for member in group:
            member.call("teardown")
            member.call("bound_proofs", LIMIT_SECONDS)  # a second is for the stranger, who says nothing
        build(group, 2)
    assert all(outcome.error.startswith("UnprovenPeerError") for outcome in outcomes), outcomes
    assert any(how in outcome.error for outcome in outcomes), outcomes
    if behave is not hang_up:  # nothing is left of that one to be seen
        assert any(address in outcome.error for outcome in outcomes for address in addresses), outcomes


def test_the_groups_of_a_round_that_no_stranger_meets_are_proven_each() -> None:
    with members(3) as group:
        build(group, 1)
        for member in group:
            member.begin("new_group")
        assert [member.end().error for member in group] == ["", "", ""]
        assert [len(member.call("proven_groups")) for member in group] == [2, 2, 2]


def test_a_subgroup_whose_members_do_not_share_the_secret_is_not_made() -> None:
    with members(2) as group:
        build(group, 1)
        group[1].call("forget_the_secret")
        for member in group:
            member.begin("new_group")
        outcomes = [member.end() for member in group]
    assert all(outcome.error.startswith("UnprovenPeerError") for outcome in outcomes), outcomes
    assert all("the proof is wrong" in outcome.error for outcome in outcomes), outcomes


def test_groups_of_one_and_of_some_ranks_are_made_as_before() -> None:
    with members(3) as group:
        build(group, 1)
        for member in group:
            member.begin("several_groups")
        assert [member.end() for member in group] == [Outcome(1.0), Outcome(3.0), Outcome(3.0)]


def test_torchs_debug_mode_works_in_proven_groups() -> None:
    with members(2) as group:
        for member in group:
            member.call("debug_in_detail")
        build(group, 1)
        for member in group:
            member.begin("all_reduce")
        assert [member.end() for member in group] == [Outcome(2.0), Outcome(2.0)]
        assert [len(member.call("proven_groups")) for member in group] == [2, 2]


def test_a_group_that_would_be_made_past_the_proof_is_not_made() -> None:
    with members(2) as group:
        build(group, 1)
        for member in group:
            member.begin("split_group")
        outcomes = [member.end() for member in group]
    assert all(outcome.error for outcome in outcomes), outcomes


def test_a_round_whose_group_is_made_past_the_proof_is_refused() -> None:
    with members(2) as group:
        for rank, member in enumerate(group):
            member.call("bypass_the_proof")
            member.begin("build", assignment(1, rank, group[0].store, 2))
        left = first_to_end(group)
        outcomes = [left.end()]
        outcomes += [member.sever(1) for member in group if member is not left]  # it may wait for the one that has left
    assert all(outcome.error for outcome in outcomes), outcomes
    assert any("in a way that allows no proof" in outcome.error for outcome in outcomes), outcomes
