"""A process that computes lives."""

from __future__ import annotations

import os

import pytest

from edriver.agent.health.cpu_use import CpuUseWatch, processor_seconds


@pytest.mark.parametrize(
    ("used", "was_busy"),
    [
        pytest.param([0.0, 0.2, 0.4], [True, True], id="works"),
        pytest.param([0.0, 0.01, 0.02], [False, False], id="idles"),
        pytest.param([0.0, 5.0, 5.0], [True, False], id="works-then-idles"),
        pytest.param([5.0, 0.0, 0.0], [False, False], id="is-gone"),
    ],
)
def test_each_window_is_judged_by_itself(used: list[float], was_busy: list[bool]) -> None:
    now, so_far = [0.0], iter(used)
    cpu_use = CpuUseWatch(lambda: next(so_far), lambda: now[0], window=10)
    found = []
    for _ in was_busy:
        now[0] += 9
        assert not cpu_use.was_busy()
        now[0] += 1
        found.append(cpu_use.was_busy())
    assert found == was_busy


def test_what_the_kernel_says_of_this_process_and_of_none() -> None:
    before = processor_seconds(os.getpid())
    while processor_seconds(os.getpid()) == before:
        pass
    assert processor_seconds(0) == 0
