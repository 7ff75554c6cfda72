"""The simulation as a test: many seeds stay green, every mutant turns red, a seed replays its run."""

from __future__ import annotations

import re

import pytest

from tests.sim.campaign import run_seeds
from tests.sim.faults import Nemesis
from tests.sim.journal_mutants import JOURNAL_MUTANTS
from tests.sim.loop_mutants import LOOP_MUTANTS
from tests.sim.mutants import MUTANTS, Patch

SEEDS = 1000
MUTANT_SEEDS = 2000

NOTICED_BY = {
    "an_interrupt_is_a_loss": 167,
    "bugs_are_retried_for_ever": 51,
    "checkpoints_are_forgotten": 5,
    "checkpoints_are_not_looked_for_again": 23,
    "done_is_no_report": 718,
    "every_sync_is_a_commit": 346,
    "newcomers_can_take_over": 214,
    "no_state_keeper_stays": 66,
    "quarantine_is_for_good": 396,
    "quiet_is_for_good": 837,
    "quarantine_stops_the_run": 61,
    "rounds_form_before_all_have_stopped": 83,
    "silence_breaks_no_round": 157,
    "stop_overrides_abort": 270,
    "suspects_are_never_killed": 157,
    "torn_state_counts_as_clean": 85,
}
"""For mutants that few seeds catch: a seed that does. If one no longer does, the test searches for another."""


@pytest.mark.parametrize("seeds", [250, pytest.param(SEEDS, marks=pytest.mark.long)])
def test_many_seeds(seeds: int) -> None:
    outcomes, violations = run_seeds(range(seeds), jobs=2)
    assert not violations, f"replay with python -m tests.sim --seed {violations[0][0]}: {violations[0][1]}"
    # Most runs survive their faults, and some lose all holders of their state: both are exercised.
    assert outcomes["success"] > 0.6 * seeds
    assert len(outcomes) > 2


def test_the_seeds_reach_what_is_rare() -> None:
    """A rule about a case that no run reaches would hold in every run."""
    awaited = {
        "a host is quarantined": r"Explain\(cause=Cause\(kind=<CauseKind.HOST_QUARANTINED\b",
        "and used again": r"Explain\(cause=Cause\(kind=<CauseKind.COOLDOWN_OVER.* host='\w', .*\bslot=None",
        "or needed before": r"Explain\(cause=Cause\(kind=<CauseKind.QUARANTINE_WAIVED\b",
        "a bug ends the run": r"FinishRun\(.*cause=Cause\(kind=<CauseKind.SAME_ERROR\b",
        "ranks make unequal steps": r"FinishRun\(.*cause=Cause\(kind=<CauseKind.UNEVEN_STEPS\b",
        "a member is preempted": r"HostUpdateResult.REMOVED",
    }
    for seed in range(SEEDS):
        lines: list[str] = []
        Nemesis(seed, lines.append).run()
        text = "\n".join(lines)
        awaited = {what: pattern for what, pattern in awaited.items() if not re.search(pattern, text)}
        if not awaited:
            return
    pytest.fail(f"in {SEEDS} seeds it never happens that {', '.join(awaited)}")


@pytest.mark.timeout(300)  # some are rare, and the machine may be busy
@pytest.mark.parametrize("mutant", MUTANTS + LOOP_MUTANTS + JOURNAL_MUTANTS, ids=lambda m: m.__name__)
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    known = NOTICED_BY.get(mutant.__name__, 0)
    for seed in (known, *range(MUTANT_SEEDS)):
        try:
            Nemesis(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds do not notice that {mutant.__doc__}")


@pytest.mark.parametrize("seed", [4, 17, 40])
def test_a_seed_replays_its_run(seed: int) -> None:
    def history() -> list[str]:
        lines: list[str] = []
        Nemesis(seed, lines.append).run()
        return lines

    first = history()
    assert len(first) > 20
    assert first == history()
