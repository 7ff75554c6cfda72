"""The simulation of restart mode as a test: seeds stay green, and mutants turn red."""

from __future__ import annotations

import pytest

from tests.sim.mutants import Patch
from tests.sim.restart_mutants import RESTART_MUTANTS
from tests.sim.restart_world import RestartNemesis


@pytest.mark.timeout(300)
def test_many_seeds() -> None:
    for seed in range(100):
        try:
            RestartNemesis(seed).run()
        except AssertionError as error:
            pytest.fail(f"replay with python -m tests.sim.restart_world --seed {seed}: {error}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", RESTART_MUTANTS, ids=lambda m: m.__name__)
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(600):
        try:
            RestartNemesis(seed).run()
        except AssertionError:
            return
    pytest.fail(f"600 seeds do not notice that {mutant.__doc__}")
