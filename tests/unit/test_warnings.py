"""What has impaired a run: each kind once, with how often it has happened, and bounded."""

from __future__ import annotations

import pytest

from edriver.driver.observe.driver_watch import LOOK_INTERVAL, DriverWatch
from edriver.driver.observe.warnings import MAX_WARNINGS, REPEAT_INTERVAL, Warnings
from edriver.model.cause import Cause, CauseKind, Count, Duration, ReportedText

PAUSED = Cause(CauseKind.DRIVER_PAUSED, detail=Duration(8.0))


def omitted(host: str) -> Cause:
    return Cause(CauseKind.OUTPUT_OMITTED, host=host, detail=Count(5))


def test_what_goes_on_is_reported_at_first_and_after_a_long_time() -> None:
    warnings = Warnings()
    assert [warnings.add(PAUSED, at) for at in (100.0, 101.0, 99.0 + REPEAT_INTERVAL, 100.0 + REPEAT_INTERVAL)] == [
        *(True, False, False, True)
    ]
    (warning,) = warnings.messages()
    assert (warning.count, warning.first_time.seconds, warning.last_time.seconds) == (4, 100, 700)
    assert warning.cause.text.startswith("the driver stood still for 8.0 s")


def test_each_host_has_a_warning_of_its_own_and_the_latest_is_the_last() -> None:
    warnings = Warnings()
    assert all(warnings.add(cause, 1.0) for cause in (omitted("a"), omitted("b")))
    warnings.add(omitted("a"), 2.0)
    assert [warning.cause.host for warning in warnings.messages()] == ["b", "a"]


def test_the_latest_of_many_are_remembered() -> None:
    warnings = Warnings()
    for number in range(10 * MAX_WARNINGS):
        warnings.add(omitted(f"h{number}"), float(number))
    assert len(warnings.messages()) == MAX_WARNINGS
    assert warnings.messages()[-1].cause.host == f"h{10 * MAX_WARNINGS - 1}"


def test_what_goes_on_no_longer_is_shown_no_longer_and_is_not_reported_again_at_once() -> None:
    warnings = Warnings()
    failed = Cause(CauseKind.DISCOVERY_FAILED, detail=ReportedText("line 1: bad"))
    assert warnings.add(failed, 1.0)
    warnings.add(omitted("a"), 2.0)
    warnings.withdraw(CauseKind.DISCOVERY_FAILED)
    assert [warning.cause.host for warning in warnings.messages()] == ["a"]
    assert not warnings.add(failed, 3.0)
    assert len(warnings.messages()) == 2


class Driver:
    """What a driver sees of itself."""

    def __init__(self) -> None:
        self.now, self.change, self.fault = 0.0, 0.0, ""
        self.watch = DriverWatch(lambda: self.now, lambda: self.change, lambda: self.fault)

    def check(self, after: float = LOOK_INTERVAL) -> list[tuple[Cause, bool]]:
        self.now += after
        return list(self.watch.check())


@pytest.mark.parametrize(("pause", "found"), [(0.0, []), (1.9, []), (8.0, [8.0])])
def test_a_driver_that_has_stood_still_says_so(pause: float, found: list[float]) -> None:
    causes = [cause for cause, _ in Driver().check(LOOK_INTERVAL + pause)]
    assert causes == [Cause(CauseKind.DRIVER_PAUSED, detail=Duration(seconds)) for seconds in found]


def test_a_clock_that_is_set_is_found_once_in_each_direction() -> None:
    driver = Driver()
    found = []
    for driver.change in (0.0, 0.25, 3600.25, 3600.5, 0.25, 0.5):
        found += [cause.detail for cause, _ in driver.check()]
    assert found == [Duration(3600.25), Duration(-3600.0)]


def test_records_that_cannot_be_written_are_found_once_each_time() -> None:
    driver = Driver()
    found = []
    for driver.fault in ("", "no space", "no space", "", "no space"):
        found += driver.check()
    assert found == [(Cause(CauseKind.UNWRITTEN, detail=ReportedText("no space")), True)] * 2
