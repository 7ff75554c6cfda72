"""The schedules of tests/trouble: the same for the same seed, with every kind of fault, within its bounds."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from tests.trouble.schedule import (
    HOSTS,
    MOST_WORKERS,
    Event,
    Flood,
    Harmless,
    Kill,
    KillDriver,
    LongCall,
    Stop,
    StopAll,
    StopDriver,
    schedule_of,
)

SEEDS = range(500)
LONGEST = {Stop: 12.0, StopDriver: 20.0, StopAll: 12.0, LongCall: 20.0}
HARMLESS = get_args(Harmless)


EASY, HARD, DRIVERS = {"hard": False}, {"hard": True}, {"drivers": True}


@pytest.mark.parametrize("kind", [EASY, HARD, DRIVERS], ids=str)
def test_a_seed_gives_the_same_schedule_every_time(kind: dict[str, bool]) -> None:
    assert [schedule_of(seed, **kind) for seed in SEEDS] == [schedule_of(seed, **kind) for seed in SEEDS]
    assert len({repr(schedule_of(seed, **kind)) for seed in SEEDS}) == len(SEEDS)


def kinds(kind: dict[str, bool]) -> Counter[type[Event]]:
    return Counter(type(event) for seed in SEEDS for event in schedule_of(seed, **kind).events)


def test_every_kind_comes_often() -> None:
    easy = set(get_args(Event)) - set(HARMLESS)
    assert set(kinds(EASY)) == easy
    assert set(kinds(HARD)) == set(get_args(Event)) - {KillDriver}
    assert set(kinds(DRIVERS)) == easy | {KillDriver}
    assert min(min(kinds(kind).values()) for kind in (HARD, DRIVERS)) > 40


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_drawn_is_within_its_bounds(seed: int) -> None:
    for schedule in (schedule_of(seed), schedule_of(seed, hard=True), schedule_of(seed, drivers=True)):
        assert set(schedule.hosts) <= set(HOSTS)
        assert 2 <= sum(schedule.hosts.values()) <= MOST_WORKERS + 1
        assert schedule.events
        for event in schedule.events:
            assert 0.0 <= event.delay <= 2.0
            assert 0.0 <= getattr(event, "seconds", 1.0) <= LONGEST.get(type(event), 12.0)
            choice = getattr(event, "choice", 0.5)
            assert choice is None or 0.0 <= choice < 1.0
            assert not isinstance(event, Flood) or event.lines <= 500_000


def test_half_of_the_hard_ones_are_to_disturb_nothing() -> None:
    schedules = [schedule_of(seed, hard=True) for seed in SEEDS]
    harmless = [schedule for schedule in schedules if schedule.harmless]
    assert 0.4 < len(harmless) / len(schedules) < 0.6
    for schedule in harmless:
        assert all(isinstance(event, HARMLESS) for event in schedule.events)
        # The times in which workers do not answer would add up to more than anything has promised.
        assert sum(isinstance(event, StopAll | LongCall) for event in schedule.events) <= 1
    for schedule in schedules:
        if not schedule.harmless:
            assert not all(isinstance(event, HARMLESS) for event in schedule.events)
    assert any(isinstance(event, Kill) for schedule in schedules for event in schedule.events)
