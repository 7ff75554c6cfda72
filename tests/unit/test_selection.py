"""Which workers should be in a round: when one forms, and while one runs."""

from __future__ import annotations

import pytest

from edriver.driver.core.selection import select, wanted_members
from tests.unit.offers import candidates, version


@pytest.mark.parametrize(
    ("waiting", "fitting", "max_np", "members", "state_keeper"),
    [
        pytest.param("", "", 4, [], None, id="no-worker"),
        pytest.param("1@a=- 2@b=-", "1 2", 4, [1, 2], None, id="newcomers-only"),
        pytest.param("1@a=2:5 2@b=2:5 3@c=-", "1 2 3", 4, [1, 2, 3], None, id="all-fit"),
        pytest.param("1@a=2:5 2@b=2:5 3@c=2:5", "1 2 3", 2, [1, 2], None, id="over-max-np-the-youngest-gives-way"),
        pytest.param("1@a=- 2@b=2:5 3@c=2:4", "1 2 3", 2, [2, 3], None, id="survivors-before-an-older-newcomer"),
        pytest.param("1@a=2:4 2@b=2:4 3@c=2:5", "1 2 3", 2, [3, 1], None, id="a-holder-before-older-survivors"),
        pytest.param("1@a=2:5 2@b=2:5 3@c=-", "2 3", 4, [2, 3], None, id="one-holder-with-a-slot-is-enough"),
        pytest.param("1@a=2:5 2@b=2:5 3@c=- 4@c=-", "3 4", 4, [3, 4], 1, id="the-oldest-holder-is-the-state-keeper"),
        pytest.param("1@a=2:5 2@b=2:4", "2", 4, [2], 1, id="a-survivor-that-is-behind-needs-the-state-keeper"),
        pytest.param("1@a=2:5 3@c=- 4@c=-", "3 4", 2, [3, 4], 1, id="a-state-keeper-does-not-count-for-max-np"),
        pytest.param("1@a=2:5 2@b=2:5", "", 4, [], 1, id="no-worker-has-a-slot"),
        pytest.param("1@a=- 2@b=-", "2", 4, [2], None, id="no-state-keeper-without-a-state"),
    ],
)
def test_select(waiting: str, fitting: str, max_np: int, members: list[int], state_keeper: int | None) -> None:
    chosen = select(candidates(waiting), {int(w) for w in fitting.split()}, max_np)
    assert [c.worker_id for c in chosen.members] == members
    assert [c.worker_id for c in chosen.state_keepers] == ([state_keeper] if state_keeper else [])
    assert [c.worker_id for c in chosen.all] == [*members, *([state_keeper] if state_keeper else [])]


def test_a_selection_names_the_highest_version_even_if_its_holder_has_no_slot() -> None:
    assert select(candidates("1@a=2:5 2@b=2:4"), {2}, 4).version == version("2:5")


@pytest.mark.parametrize(
    ("members", "newcomers", "fitting", "max_np", "wanted"),
    [
        pytest.param({1, 2}, [], {1, 2}, 4, {1, 2}, id="nothing-has-changed"),
        pytest.param({1, 2}, [3], {1, 2, 3}, 4, {1, 2, 3}, id="a-newcomer-joins"),
        pytest.param({1, 2}, [3, 4], {1, 2, 3, 4}, 3, {1, 2, 3}, id="the-older-newcomer-takes-the-last-place"),
        pytest.param({1, 2}, [3], {1, 2, 3}, 2, {1, 2}, id="no-place-for-a-newcomer"),
        pytest.param({1, 2}, [3], {1, 2}, 4, {1, 2}, id="a-newcomer-without-a-slot"),
        pytest.param({1, 2}, [], {2}, 4, {2}, id="a-member-without-a-slot-leaves"),
        pytest.param({1, 2}, [3], {2, 3}, 2, {2, 3}, id="one-leaves-one-joins"),
        pytest.param({1, 2}, [], set(), 4, {1}, id="the-oldest-stays-for-the-state"),
        pytest.param({1, 2}, [3, 4], {3, 4}, 2, {1, 3, 4}, id="and-hands-it-to-the-newcomers"),
        pytest.param({1, 3, 4}, [], {3, 4}, 2, {3, 4}, id="the-state-keeper-leaves-once-others-have-the-state"),
        pytest.param({5, 3}, [1], {1, 3, 5}, 2, {3, 5}, id="members-before-an-older-newcomer"),
    ],
)
def test_wanted_members(
    members: set[int], newcomers: list[int], fitting: set[int], max_np: int, wanted: set[int]
) -> None:
    assert wanted_members(members, newcomers, fitting, max_np) == wanted


@pytest.mark.parametrize(
    ("newcomers", "leaving", "max_np", "wanted"),
    [
        pytest.param([], {3, 4}, 4, {1, 2, 3, 4}, id="they-stay-without-others"),
        pytest.param([5], {3, 4}, 4, {1, 2, 3, 5}, id="the-younger-leaves-for-one"),
        pytest.param([5, 6], {3, 4}, 4, {1, 2, 5, 6}, id="all-leave-for-as-many"),
        pytest.param([5, 6], {3, 4}, 8, {1, 2, 5, 6}, id="they-keep-no-more-places-than-there-were"),
        pytest.param([], {3, 4}, 3, {1, 2, 3}, id="at-most-max-np"),
        pytest.param([], {4}, 4, {1, 2, 4}, id="not-one-that-leaves-at-once"),
        pytest.param([], {1, 2, 3, 4}, 4, {1, 2, 3, 4}, id="all"),
    ],
)
def test_members_that_are_leaving_fill_the_round_up_to_its_size(
    newcomers: list[int], leaving: set[int], max_np: int, wanted: set[int]
) -> None:
    placed = {1, 2, 5, 6} - leaving
    assert wanted_members({1, 2, 3, 4}, newcomers, placed, max_np, leaving=leaving) == wanted


@pytest.mark.parametrize(
    ("waiting", "before", "members"),
    [
        pytest.param("1@a=2:5 2@b=2:5 3@b=2:5", 3, [1, 2, 3], id="all-are-needed"),
        pytest.param("1@a=2:5 2@b=2:5 3@b=2:5 4@c=-", 3, [1, 4, 2], id="a-newcomer-goes-before"),
        pytest.param("1@a=2:5 2@b=2:4 3@b=2:5", 2, [1, 3], id="the-holder-of-the-newer-state-stays"),
        pytest.param("1@a=2:5 2@b=2:5 3@b=2:5", 0, [1], id="none-is-to-stay"),
    ],
)
def test_a_round_is_filled_up_with_those_that_are_leaving(waiting: str, before: int, members: list[int]) -> None:
    assert [c.worker_id for c in select(candidates(waiting), {1, 4}, 4, {2, 3}, before).members] == members
