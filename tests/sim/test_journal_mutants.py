"""What the simulation is worth: each wrong variant of the journal turns it red."""

from __future__ import annotations

import pytest

from tests.sim.journal_mutants import JOURNAL_MUTANTS
from tests.sim.mutants import Patch
from tests.sim.noticed import assert_noticed


@pytest.mark.parametrize("mutant", JOURNAL_MUTANTS, ids=lambda m: m.__name__)
def test_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(mutant, monkeypatch)
