"""A script stands still if it prints nothing and neither it nor its children use a processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edriver.agent.health.cpu_use import family_seconds
from edriver.agent.health.standing_still import StandstillWatch


@pytest.mark.parametrize("sign", ["output", "work"])
def test_a_standstill_is_reported_once_and_its_end_once(sign: str) -> None:
    now, used = [0.0], [1.0]
    watch = StandstillWatch(lambda: used[0], lambda: now[0], window=10)
    found = []
    for window in range(8):
        if window in (0, 4):
            watch.hear() if sign == "output" else used.__setitem__(0, used[0] + 0.2)
        now[0] += 9
        assert watch.check() is None
        now[0] += 1
        found.append(watch.check())
    assert found == [None, 10.0, None, None, 0.0, 10.0, None, None]


def test_what_children_use_counts_also_when_they_are_gone() -> None:
    before = family_seconds(os.getpid())
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = family_seconds(os.getpid())
        child.communicate(b"\n")
    assert alive >= before + 0.25
    assert family_seconds(os.getpid()) >= alive
    assert family_seconds(child.pid) == 0
