"""Pauses between two tries to have an engine give something."""

from __future__ import annotations

from edriver.driver.engines.pause import Pause


def test_each_is_twice_as_long_up_to_the_longest_until_it_is_given() -> None:
    pause = Pause(first=2.0, longest=15.0)
    assert pause.until == 0.0
    assert [pause.begin(100.0) for _ in range(5)] == [2.0, 4.0, 8.0, 15.0, 15.0]
    assert pause.until == 115.0
    pause.end()
    assert pause.until == 0.0
    assert pause.begin(200.0) == 2.0
    assert pause.until == 202.0
