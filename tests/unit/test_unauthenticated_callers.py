"""Unauthenticated callers: how long they may stay connected, and which one is disconnected for another."""

from __future__ import annotations

import math
import random

import pytest

from edriver.wire.unauthenticated import UnauthenticatedCallers


@pytest.fixture
def strangers() -> UnauthenticatedCallers[str]:
    return UnauthenticatedCallers(most=3, timeout=10.0, first_word=0.1, head_start=1.0)


def test_there_are_so_many_and_no_more(strangers: UnauthenticatedCallers[str]) -> None:
    for number, caller in enumerate("abc"):
        assert not strangers.full
        strangers.add(caller, float(number))
    assert strangers.full
    strangers.discard("b")
    assert not strangers.full


def test_each_has_its_own_deadline(strangers: UnauthenticatedCallers[str]) -> None:
    assert strangers.deadline is None
    strangers.add("a", 1.0)
    strangers.add("b", 5.0)
    assert strangers.deadline == 11.0
    assert strangers.overdue(10.9) == []
    assert strangers.overdue(11.0) == ["a"]
    assert strangers.overdue(15.0) == ["a", "b"]
    strangers.discard("a")
    assert strangers.deadline == 15.0


def test_the_oldest_silent_one_makes_room_before_one_that_has_spoken(strangers: UnauthenticatedCallers[str]) -> None:
    for number, caller in enumerate("abc"):
        strangers.add(caller, float(number))
    strangers.note_data("a")
    assert strangers.dispensable(5.0) == "b"
    strangers.note_data("b")
    strangers.note_data("c")
    assert strangers.dispensable(5.0) == "a"


def test_one_that_came_or_began_a_moment_ago_is_spared(strangers: UnauthenticatedCallers[str]) -> None:
    assert strangers.dispensable(0.0) is None
    strangers.add("a", 0.0)
    assert strangers.dispensable(0.05) is None
    assert strangers.dispensable(0.1) == "a"
    strangers.note_data("a")
    assert strangers.dispensable(0.9) is None
    assert strangers.dispensable(1.0) == "a"


def test_of_callers_that_are_looked_at_the_oldest_go_and_those_whose_time_is_over(
    strangers: UnauthenticatedCallers[str],
) -> None:
    assert strangers.observe("ab", 0.0) == []
    assert strangers.observe("abcd", 5.0) == ["a"]
    assert strangers.crowded
    assert strangers.observe("abcd", 6.0) == ["a"], "it counts until it is gone"
    assert strangers.observe("bcd", 7.0) == []
    assert not strangers.crowded
    assert strangers.observe("bcd", 10.0) == ["b"]
    assert strangers.observe("bcd", 15.0) == ["b", "c", "d"]


def test_one_that_is_gone_and_comes_again_has_its_whole_time(strangers: UnauthenticatedCallers[str]) -> None:
    strangers.observe("a", 0.0)
    strangers.observe("", 5.0)
    assert strangers.observe("a", 9.0) == []
    assert strangers.observe("a", 18.9) == []
    assert strangers.observe("a", 19.0) == ["a"]


def test_one_that_was_discarded_is_of_no_account(strangers: UnauthenticatedCallers[str]) -> None:
    strangers.add("a", 0.0)
    strangers.discard("a")
    strangers.discard("a")
    strangers.note_data("a")
    assert strangers.dispensable(100.0) is None
    assert strangers.overdue(100.0) == []


@pytest.mark.parametrize("seed", range(50))
def test_however_they_come_and_go_there_are_never_too_many_for_long_and_members_stay(seed: int) -> None:
    """As ports use it: callers come, authenticate and hang up, and what is to be closed is gone at the next look."""
    draw = random.Random(seed)
    most, timeout = draw.randrange(4), draw.choice([1.0, 5.0, math.inf])
    limit: UnauthenticatedCallers[int] = UnauthenticatedCallers(most, timeout)
    there: dict[int, float] = {}
    members: set[int] = set()
    for now in range(100):
        for caller in draw.sample(sorted(there), draw.randint(0, len(there)) // 2):
            if draw.random() < 0.5:
                members.add(caller)
            else:
                del there[caller]
        there |= {1000 * now + number: float(now) for number in range(draw.randrange(5))}
        unauthenticated = [caller for caller in there if caller not in members]
        closed = limit.observe(unauthenticated, now)
        assert set(closed) <= set(unauthenticated)
        stay = [caller for caller in unauthenticated if caller not in closed]
        assert len(stay) <= most
        assert stay == unauthenticated[len(closed) :], "the oldest go"
        assert all(now - there[caller] < timeout for caller in stay)
        assert len(stay) == most or all(now - there[caller] >= timeout for caller in closed), "none goes without need"
        for caller in closed:
            del there[caller]
