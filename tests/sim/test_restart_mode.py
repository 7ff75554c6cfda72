"""The simulation of restart mode as a test: seeds stay green, and mutants turn red."""

from __future__ import annotations

import pytest

from tests.sim.mutants import Patch
from tests.sim.noticed import assert_noticed_in_restart_mode
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
    assert_noticed_in_restart_mode(mutant, monkeypatch)
