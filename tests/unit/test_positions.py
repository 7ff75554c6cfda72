"""Replicas by position: which positions slots have, and how many workers are in whole replicas."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edriver.driver.core.positions import PositionCounts, first_position, in_turn, in_whole_replicas, slots_in_replicas


@pytest.mark.parametrize(
    ("size", "hosts", "slots"),
    [
        pytest.param(1, [3, 1], 4, id="alone"),
        pytest.param(2, [5, 1], 4, id="a-slot-left-over"),
        pytest.param(2, [1, 1, 2], 4, id="small-hosts"),
        pytest.param(4, [2, 1, 1], 4, id="small-hosts-of-unequal-sizes"),
        pytest.param(4, [2, 4], 4, id="half-a-replica"),
        pytest.param(3, [2, 2], 0, id="no-part-of-a-replica"),
        pytest.param(2, [], 0, id="no-hosts"),
    ],
)
def test_slots_in_replicas(size: int, hosts: list[int], slots: int) -> None:
    assert slots_in_replicas(size, hosts) == slots


@pytest.mark.parametrize(
    ("size", "fitting", "taken", "positions"),
    [
        pytest.param(2, 4, {}, [0, 1, 0, 1], id="unused"),
        pytest.param(2, 4, {1: 1, 2: 0}, [0, 1, 0, 1], id="in-turn"),
        pytest.param(3, 3, {0: 1}, [1, 0, 2], id="of-a-smaller-host"),
        pytest.param(2, 4, {0: 1, 1: 1}, [1, 1, 0, 0], id="two-alike"),
        pytest.param(2, 4, {0: 1, 1: 1, 2: 1}, [1, 1, 1, 0], id="more-alike-than-fit"),
    ],
)
def test_workers_keep_their_positions_and_other_slots_have_what_is_missing(
    size: int, fitting: int, taken: Mapping[int, int], positions: list[int]
) -> None:
    assert in_turn(size, fitting, taken) == positions


def test_a_small_host_takes_the_part_of_which_there_are_the_fewest() -> None:
    assert first_position(4, 2, [1, 1, 0, 0]) == 2
    assert first_position(4, 2, [0, 0, 1, 1]) == 0


def test_workers_are_counted_host_by_host() -> None:
    counts = PositionCounts(2)
    counts.note("a", live=[0, 1], ready=[0])
    counts.note("b", live=[1], ready=[1])
    assert (counts.live, counts.ready, in_whole_replicas(counts.live)) == ([1, 2], [1, 1], 2)
    counts.note("a", live=[1], ready=[])
    assert (counts.live, counts.ready, in_whole_replicas(counts.live)) == ([0, 2], [0, 1], 0)
    counts.forget("b")
    assert (counts.live, counts.ready) == ([0, 1], [0, 0])
