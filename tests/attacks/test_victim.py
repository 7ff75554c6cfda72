"""The checks that all other tests here rely on: a run that is not attacked passes them, a harmed one does not."""

from __future__ import annotations

import os
import signal

import pytest

from tests.attacks.attackers import OTHER_ACCOUNT, as_other_account
from tests.attacks.victim import victim


def test_a_run_that_is_not_attacked_is_unharmed() -> None:
    with victim() as run:
        run.trains()
        run.is_unharmed()


@pytest.mark.parametrize("harm", ["killed", "touched", "said"])
def test_harm_is_noticed(harm: str) -> None:
    with victim("--min-np", "1") as run:
        run.trains()
        worker = run.workers()[0]
        if harm == "killed":
            os.kill(worker, signal.SIGKILL)
            run.run.line(r"round 1\.2: ")
        elif harm == "touched":
            steps = run.folder / f"steps-{worker}.jsonl"
            first, _, others = steps.read_text().partition("\n")
            steps.write_text(first.replace('"digest": ', '"digest": 1') + "\n" + others)
        else:
            run.run.lines.append("edriver: something that no run says")
        with pytest.raises(AssertionError):
            run.is_unharmed()


def whoami() -> list[int]:
    import os

    return [*os.getresuid(), *os.getresgid(), *os.getgroups()]


def test_as_other_account_runs_as_that_account() -> None:
    assert as_other_account(whoami) == [OTHER_ACCOUNT] * 6
