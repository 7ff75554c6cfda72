"""Rank assignment: the rule of edriver/driver/core/selection.py, row by row."""

from __future__ import annotations

import itertools
import random

import pytest

from edriver.driver.core.selection import in_order_of_rank, newest_version, plan_round
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import RoundPlan
from tests.unit.offers import candidates, version

ROUND = RoundId(1, 9)


def plan(text: str, first: bool = False) -> RoundPlan:
    return plan_round(ROUND, 1, candidates(text), first)


@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        pytest.param("1@a=- 2@a=- 3@b=-", [1, 2, 3], id="all-new-by-age"),
        pytest.param("1@a=2:5 2@a=2:5 3@b=2:5", [1, 2, 3], id="all-equal-by-age"),
        pytest.param("1@a=2:4 2@b=2:5 3@c=2:5", [2, 1, 3], id="rank-0-is-the-oldest-holder-of-the-highest-version"),
        pytest.param("1@a=2:900 2@b=3:1", [2, 1], id="a-later-round-beats-a-higher-count"),
        pytest.param("1@a=2:4 2@a=2:4 3@b=2:5 4@b=2:4", [3, 4, 1, 2], id="rank-0s-host-comes-first"),
        pytest.param("2@a=2:4 3@a=2:5", [3, 2], id="rank-0-is-first-on-its-host-though-younger"),
        pytest.param("1@b=2:5 5@c=2:5 3@d=2:5", [1, 3, 5], id="hosts-by-the-age-of-their-oldest-survivor"),
        pytest.param("1@a=2:5 2@b=- 3@c=2:5", [1, 3, 2], id="hosts-without-a-survivor-come-last"),
        pytest.param("4@a=2:5 1@a=- 6@a=2:5", [4, 6, 1], id="survivors-before-newcomers-within-a-host"),
        pytest.param("1@a=2:5 2@b=- 9@b=2:5 3@c=2:5", [1, 3, 9, 2], id="a-newcomer-does-not-make-its-host-older"),
        pytest.param("1@a=2:5 2@b=2:5 3@a=2:5 4@b=-", [1, 3, 2, 4], id="ranks-of-a-host-are-contiguous"),
        pytest.param("1@a=2:5>2:6 2@b=2:6", [1, 2], id="one-that-has-kept-the-gradients-may-be-rank-0"),
    ],
)
def test_order(waiting: str, order: list[int]) -> None:
    found = candidates(waiting)
    for shuffled in itertools.permutations(found):
        newest, _ = newest_version(shuffled, 1)
        assert [c.worker_id for c in in_order_of_rank(shuffled, newest)] == order


def test_a_seat_has_all_six_of_horovods_numbers() -> None:
    seats = plan("1@a=2:5 2@a=2:5 3@a=2:5 4@b=2:5 5@c=2:5 6@c=2:5").seats
    assert [(s.worker_id, s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in seats] == [
        (1, 0, 0, 3, 0, 3),
        (2, 1, 1, 3, 0, 2),  # b has no local rank 1: c follows a in that row
        (3, 2, 2, 3, 0, 1),
        (4, 3, 0, 1, 1, 3),
        (5, 4, 0, 2, 2, 3),
        (6, 5, 1, 2, 1, 2),
    ]


@pytest.mark.parametrize(
    ("waiting", "receivers"),
    [
        pytest.param("1@a=2:5 2@a=2:5", (), id="none-if-all-are-equal"),
        pytest.param("1@a=2:5 2@a=2:4 3@b=- 4@b=2:5", (1, 3), id="those-that-are-behind"),
        pytest.param("1@a=2:5", (), id="not-the-only-one"),
        pytest.param("1@a=2:5>2:6 2@a=2:6 3@b=2:5", (2,), id="not-one-that-has-kept-the-gradients"),
    ],
)
def test_who_receives(waiting: str, receivers: tuple[int, ...]) -> None:
    assert plan(waiting).receivers == receivers


@pytest.mark.parametrize("waiting", ["1@a=- 2@a=- 3@b=-", "1@a=2:5 2@a=2:5 3@b=2:5", "1@a=2:5 2@a=2:4 3@b=-"])
def test_in_the_first_sync_of_a_call_all_receive_from_rank_0(waiting: str) -> None:
    assert plan(waiting, first=True).receivers == (1, 2)


def test_a_plan_carries_the_version_and_the_store_of_rank_0() -> None:
    made = plan("1@a=2:4 2@b=2:5")
    assert (made.round_id, made.ordinal, made.version) == (ROUND, 1, version("2:5"))
    assert made.store == ("b", 7002)
    assert made.workers == (2, 1)


def test_the_highest_version_of_no_candidates_is_none() -> None:
    assert newest_version([], 1) == (NO_VERSION, ())


@pytest.mark.parametrize("seed", range(50))
def test_any_plan_is_sound(seed: int) -> None:
    rng = random.Random(seed)
    offers = ["-", "1:3", "2:0", "2:7"]
    waiting = [f"{i}@{rng.choice('abcd')}={rng.choice(offers)}" for i in rng.sample(range(1, 40), rng.randint(1, 12))]
    made = plan(" ".join(waiting))
    by_id = {c.worker_id: c for c in candidates(" ".join(waiting))}
    assert sorted(made.workers) == sorted(by_id)
    assert [s.rank for s in made.seats] == list(range(len(waiting)))
    hosts = [host for host, _ in itertools.groupby(s.host for s in made.seats)]
    assert len(hosts) == len(set(hosts))
    for host in hosts:
        on_host = [s for s in made.seats if s.host == host]
        assert [s.local_rank for s in on_host] == list(range(len(on_host)))
        assert {s.local_size for s in on_host} == {len(on_host)}
    for local_rank in {s.local_rank for s in made.seats}:
        row = [s for s in made.seats if s.local_rank == local_rank]
        assert [s.cross_rank for s in row] == list(range(len(row)))
        assert {s.cross_size for s in row} == {len(row)}
    zero = by_id[made.workers[0]]
    assert zero.worker_id == min(c.worker_id for c in by_id.values() if c.version == made.version)
    assert made.version == max(c.version for c in by_id.values())
