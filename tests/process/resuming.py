"""A run whose driver is killed, `edriver resume`, which takes it over, and the steps that rank 0 has written down."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.process.running import ROOT, SCRIPTS, Printing, Run
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


class Resumed(Printing):
    """`edriver resume`, of a run that a test has begun."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        *words: str,
        through: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        state = folder / "state" / "edriver"
        where = words or (str(state / run.id),)
        super().__init__(
            [*through, sys.executable, "-m", "edriver", "resume", *where],
            folder,
            {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state"), **(environ or {})},
        )


def kill(run: Run) -> None:
    """Kill its driver."""
    run.process.kill()
    run.process.wait()


def steps_of(reports: Path) -> list[int]:
    return [int(line.split()[0]) for line in reports.read_text().splitlines()]


def assert_every_step_once(reports: Path) -> None:
    steps = steps_of(reports)
    assert steps == [*range(1, len(steps) + 1)]


def wait_for_steps(reports: Path, more: int) -> None:
    """Wait until rank 0 has written down so many more."""
    before = len(steps_of(reports))
    until(lambda: len(steps_of(reports)) >= before + more, f"{more} more steps than {before}", every=0.02)


def environ_of(folder: Path, **more: str) -> dict[str, str]:
    return {
        "XDG_STATE_HOME": str(folder / "state"),
        "REPORTS": str(folder / "reports"),
        "STEPS": "200",
        "EPOCHS": "2",
        "PAUSE": "0.05",
        **more,
    }
