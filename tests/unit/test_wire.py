"""Times, to and from their messages."""

from __future__ import annotations

import math

import pytest

from edriver.wire.conversion import (
    duration,
    epoch_seconds,
    round_times_message,
    round_times_of,
    span_seconds,
    timestamp,
)


@pytest.mark.parametrize("seconds", [0.0, 0.000001, 1795383062.413631, -86400.25])
def test_a_point_in_time_keeps_its_microseconds(seconds: float) -> None:
    assert epoch_seconds(timestamp(seconds)) == seconds


@pytest.mark.parametrize("seconds", [0.0, 0.000001, 600.5, -0.25])
def test_a_span_keeps_its_microseconds(seconds: float) -> None:
    assert span_seconds(duration(seconds)) == seconds


@pytest.mark.parametrize("convert", [timestamp, duration])
@pytest.mark.parametrize("seconds", [math.inf, math.nan])
def test_what_is_no_number_is_refused(convert: object, seconds: float) -> None:
    assert callable(convert)
    with pytest.raises((OverflowError, ValueError)):
        convert(seconds)


def test_the_times_of_a_round_lack_what_was_not_reached() -> None:
    times = {"waiting": 100.5, "stepped": 102.25, "received_bytes": 4096, "commit_duration": 0.125}
    message = round_times_message(times)
    assert not message.HasField("notified")
    assert round_times_of(message) == times
