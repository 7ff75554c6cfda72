"""`edriver --supervise`: when it starts another driver, how long it waits, and what it answers."""

from __future__ import annotations

import sys

import pytest

from edriver.cli.resuming.supervise import PAUSES, STABLE, supervise
from edriver.driver.journal.journal import EXIT_REPLACED
from edriver.system.child import Child

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


class Drivers:
    """Processes in the place of drivers: each lasts so long, and ends in this way."""

    def __init__(self, *drivers: tuple[float, str]) -> None:
        self._drivers = iter(drivers)
        self.pauses: list[float] = []
        self.commands: list[list[str]] = []
        self._now = 0.0
        self._lasts = 0.0

    def start(self, command: list[str]) -> Child:
        self.commands.append(command)
        self._lasts, code = next(self._drivers)
        return Child([sys.executable, "-S", "-c", code])

    def clock(self) -> float:
        """It is read before a driver starts, and after it has ended."""
        self._now += self._lasts
        self._lasts = 0.0
        return self._now

    def supervise(self) -> int:
        return supervise(["-np", "2", "true"], self.start, self.clock, self.pauses.append)


def test_it_starts_another_one_until_one_ends_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    drivers = Drivers((1.0, KILLED), (1.0, KILLED), (1.0, "raise SystemExit(3)"))
    assert drivers.supervise() == 3
    assert len(drivers.commands) == 3
    assert all(command[-5:] == ["-m", "edriver", "-np", "2", "true"] for command in drivers.commands)
    said = "edriver: the driver was killed by SIGKILL: starting another one\n"
    assert capfd.readouterr().err == said * 2


def test_one_that_leaves_its_run_to_another_is_followed_by_one_that_stands_by() -> None:
    drivers = Drivers((1.0, f"raise SystemExit({EXIT_REPLACED})"), (1.0, ""))
    assert drivers.supervise() == 0
    assert len(drivers.commands) == 2


def test_it_waits_longer_for_each_that_is_killed_in_a_row() -> None:
    drivers = Drivers(*[(STABLE / 2, KILLED)] * 9, (0.0, ""))
    assert drivers.supervise() == 0
    assert drivers.pauses == [*PAUSES, PAUSES[-1], PAUSES[-1]]


def test_a_driver_that_lasted_is_the_first_of_a_row() -> None:
    drivers = Drivers((1.0, KILLED), (1.0, KILLED), (STABLE, KILLED), (1.0, KILLED), (0.0, ""))
    drivers.supervise()
    assert drivers.pauses == [PAUSES[0], PAUSES[1], PAUSES[0], PAUSES[1]]
