"""The operator's limits: what is refused, in which words, and how long a slot rests after failures."""

from __future__ import annotations

from typing import Any

import pytest

from edriver.model.settings import Settings


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        pytest.param({"np": 0, "min_np": 0, "max_np": 0}, "-np is 0: a run needs at least one worker", id="np-0"),
        pytest.param({"min_np": 0}, "--min-np is 0: it must lie between 1 and -np (4)", id="min-np-0"),
        pytest.param({"min_np": 5}, "--min-np is 5: it must lie between 1 and -np (4)", id="min-np-above-np"),
        pytest.param({"max_np": 3}, "--max-np is 3: it must not be below -np (4)", id="max-np-below-np"),
        pytest.param({"start_timeout": 0.0}, "--start-timeout is 0: it must be above 0 seconds", id="start-timeout"),
        pytest.param({"elastic_timeout": -2.5}, "--elastic-timeout is -2.5: it must be above 0", id="elastic-timeout"),
        pytest.param({"reset_limit": -1}, "--reset-limit is -1: it must not be negative", id="reset-limit"),
        pytest.param({"reset_window": 0.0}, "--reset-window is 0: it must be above 0 seconds", id="reset-window"),
        pytest.param({"cooldown_range": (9.0, 3.0)}, "--blacklist-cooldown-range is 9 3: ", id="cooldown-backwards"),
        pytest.param({"cooldown_range": (0.0, 3.0)}, "both above 0, the shortest first", id="cooldown-0"),
    ],
)
def test_contradictory_limits_are_refused_by_flag(limits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        Settings(**{"np": 4, "min_np": 2, "max_np": 8, **limits})
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"np": 1, "min_np": 1, "max_np": 1}, id="one-worker"),
        pytest.param({"np": 4, "min_np": 4, "max_np": 4}, id="no-room"),
        pytest.param({"reset_limit": 0}, id="no-failure-allowed"),
        pytest.param({"cooldown_range": (3.0, 3.0)}, id="constant-cooldown"),
    ],
)
def test_limits_may_touch(limits: dict[str, Any]) -> None:
    settings = Settings(**{"np": 4, "min_np": 2, "max_np": 8, **limits})
    assert {name: getattr(settings, name) for name in limits} == limits


COOLDOWNS = [
    pytest.param(None, 0.0, [0, 1, 2, 4, 8, 16, 30, 30], id="default-first-replacement-at-once"),
    pytest.param(None, 1.0, [0, 2, 4, 8, 16, 32, 60, 60], id="default-longest"),
    pytest.param((5.0, 40.0), 0.0, [5, 10, 20, 20], id="doubles-from-first"),
    pytest.param((5.0, 40.0), 0.5, [7.5, 15, 30, 30], id="half-of-the-jitter"),
    pytest.param((5.0, 40.0), 1.0, [10, 20, 40, 40], id="to-longest"),
    pytest.param((5.0, 6.0), 0.0, [5, 5], id="never-below-the-shortest"),
    pytest.param((7.0, 7.0), 0.5, [7, 7, 7], id="constant"),
]


@pytest.mark.parametrize(("cooldown_range", "draw", "cooldowns"), COOLDOWNS)
def test_a_slot_rests_longer_after_each_failure(
    cooldown_range: tuple[float, float] | None, draw: float, cooldowns: list[float]
) -> None:
    settings = Settings(np=1, min_np=1, max_np=1, cooldown_range=cooldown_range)
    assert [settings.cooldown(failures, draw) for failures in range(1, len(cooldowns) + 1)] == cooldowns


@pytest.mark.parametrize(
    ("cooldown_range", "draw", "cooldowns"),
    [
        pytest.param(None, 0.0, [10, 20, 40, 80, 150, 150], id="default-shortest"),
        pytest.param(None, 1.0, [20, 40, 80, 160, 300, 300], id="default-longest"),
        pytest.param((5.0, 40.0), 0.0, [5, 10, 20, 20], id="as-the-operator-says"),
    ],
)
def test_a_host_rests_longer_at_each_quarantine(
    cooldown_range: tuple[float, float] | None, draw: float, cooldowns: list[float]
) -> None:
    settings = Settings(np=1, min_np=1, max_np=1, cooldown_range=cooldown_range)
    assert [settings.host_cooldown(times, draw) for times in range(1, len(cooldowns) + 1)] == cooldowns


@pytest.mark.parametrize("cooldown_range", [None, (5.0, 40.0)])
def test_thousands_of_failures_do_not_overflow(cooldown_range: tuple[float, float] | None) -> None:
    settings = Settings(np=1, min_np=1, max_np=1, cooldown_range=cooldown_range)
    assert settings.cooldown(100_000, draw=0.5) == settings.cooldown(20, draw=0.5)
    assert settings.host_cooldown(100_000, draw=0.5) == settings.host_cooldown(20, draw=0.5)
