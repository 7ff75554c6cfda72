"""What a boundary is worth when the host has run ahead of the device."""

from __future__ import annotations

from collections.abc import Callable

from edriver.worker.state.device_mark import JUDGEMENT_BOUND, DeviceMark


class Device:
    """A device that completes its queued work when the test says."""

    def __init__(self) -> None:
        self.asked = 0
        self.done = 0

    def ask(self) -> Work:
        self.asked += 1
        return Work(self, self.asked)


class Time:
    """Goes on with each sleep, after which something may happen."""

    def __init__(self, then: Callable[[float], object] = lambda now: None) -> None:
        self.now = 0.0
        self._then = then

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._then(self.now)


class Work:
    """An event on the device."""

    def __init__(self, device: Device, number: int) -> None:
        self._device = device
        self._number = number

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self._device.done >= self._number

    def synchronize(self) -> None:
        self._device.done = self._number


def test_a_boundary_that_the_device_had_not_reached_is_void_whatever_comes_after() -> None:
    device = Device()
    time = Time()
    mark = DeviceMark(device.ask, time.clock, time.sleep)
    mark.set()
    mark.judge()
    device.done = 1  # after the abort the queue runs on, with rubbish
    mark.judge()
    assert not mark.reached


def test_a_boundary_that_the_device_had_reached_stays_good() -> None:
    device = Device()
    mark = DeviceMark(device.ask)
    mark.set()
    assert not mark.reached
    device.done = 1
    mark.judge()
    assert mark.reached


def test_a_device_that_comes_to_the_boundary_in_time_has_reached_it() -> None:
    device = Device()
    time = Time(lambda now: setattr(device, "done", int(now >= JUDGEMENT_BOUND / 2)))
    mark = DeviceMark(device.ask, time.clock, time.sleep)
    mark.set()
    mark.judge()
    assert mark.reached
    assert time.now < JUDGEMENT_BOUND


def test_the_next_boundary_begins_anew() -> None:
    device = Device()
    time = Time()
    mark = DeviceMark(device.ask, time.clock, time.sleep)
    mark.set()
    mark.judge()
    mark.set()
    device.done = 2
    assert mark.reached


def test_waiting_is_for_all_that_was_asked() -> None:
    device = Device()
    mark = DeviceMark(device.ask)
    device.ask()
    assert mark.wait()
    assert device.done == device.asked == 2


def test_without_a_device_everything_is_done_at_once() -> None:
    mark = DeviceMark(lambda: None)
    mark.judge()
    assert not mark.wait()
    mark.set()
    assert mark.reached
