"""Histories that stay bounded."""

from __future__ import annotations

import itertools

import pytest

from edriver.common.downsample import Downsampled


def test_what_comes_too_soon_is_passed_over() -> None:
    history: Downsampled[str] = Downsampled(interval=1.0)
    for time in (10.0, 10.5, 10.9, 11.0, 11.5, 12.5):
        history.add(time, str(time))
    assert [time for time, _ in history.samples] == [10.0, 11.0, 12.5]


@pytest.mark.parametrize("seconds", [100, 1000, 10_000])
def test_it_never_grows_beyond_its_limit_and_stays_even(seconds: int) -> None:
    history: Downsampled[int] = Downsampled(limit=50, interval=1.0)
    for second in range(seconds):
        dropped = history.add(float(second), second)
        assert len(history.samples) <= 50
        assert not dropped or len(history.samples) == 26
    times = [time for time, _ in history.samples]
    assert times[0] == 0.0
    assert seconds - times[-1] <= history.interval
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {history.interval}
