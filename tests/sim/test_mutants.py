"""What the simulation is worth: each wrong variant of the core turns it red."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, Patch
from tests.sim.noticed import assert_noticed
from tests.sim.replica_mutants import ONE_REPLICA_MUTANTS, REPLICA_MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(mutant, monkeypatch)


@pytest.mark.parametrize("mutant", REPLICA_MUTANTS, ids=lambda m: m.__name__)
def test_mutant_of_replicas_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(mutant, monkeypatch, replica_sizes=(2, 2, 3))


@pytest.mark.parametrize("mutant", ONE_REPLICA_MUTANTS, ids=lambda m: m.__name__)
def test_mutant_of_one_replica_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(mutant, monkeypatch, all_share=1.0)
