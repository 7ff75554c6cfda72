"""Seeds of workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import edriver


@pytest.fixture
def seed_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def seed(worker_id: int, base: int = 0) -> int:
        monkeypatch.setenv("EDRIVER_WORKER_ID", str(worker_id))
        return edriver.worker_seed(base)

    return seed


def test_each_worker_has_a_seed_of_its_own(seed_of: Callable[..., int]) -> None:
    seeds = {seed_of(worker_id, base) for worker_id in range(1, 100) for base in range(10)}
    assert len(seeds) == 990
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_worker_keeps_its_seed(seed_of: Callable[..., int]) -> None:
    assert seed_of(7, 42) == seed_of(7, 42)


def test_a_script_on_its_own_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDRIVER_WORKER_ID", raising=False)
    assert edriver.worker_seed() == edriver.worker_seed(0)
