"""Permutation: each value once, for any length; keys make different ones; the orders look drawn at random."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest
import torch

from edriver.worker.sampler.permutation import Permutation

LENGTHS = sorted({*range(1, 131), *(2**k + d for k in range(1, 17) for d in (-1, 0, 1))})


def whole(length: int, *key: int) -> list[int]:
    return Permutation(length, *key).order(torch.arange(length)).tolist()


def chi_square(observed: Iterable[int], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for count in observed)


def test_every_value_comes_once_at_any_length() -> None:
    wrong = [length for length in LENGTHS if sorted(whole(length, 0, 0)) != list(range(length))]
    assert not wrong


def test_places_can_be_asked_for_in_any_order_and_number() -> None:
    permutation = Permutation(1000, 3)
    order = whole(1000, 3)
    assert permutation.order(torch.tensor([999, 0, 500])).tolist() == [order[999], order[0], order[500]]
    assert permutation.order(torch.tensor([], dtype=torch.int64)).tolist() == []


def test_positions_are_not_written_to() -> None:
    positions = torch.arange(100)
    Permutation(100, 1).order(positions)
    assert positions.tolist() == list(range(100))


def test_each_seed_and_each_epoch_has_an_order_of_its_own() -> None:
    orders = {tuple(whole(100, seed, epoch)) for seed in range(12) for epoch in range(12)}
    assert len(orders) == 144


@pytest.mark.parametrize("length", [2, 3, 5, 17])
def test_every_value_is_as_likely_at_every_place(length: int) -> None:
    trials = 50 * length
    counts: Counter[tuple[int, ...]] = Counter(
        pair for seed in range(trials) for pair in enumerate(whole(length, seed))
    )
    statistic = chi_square((counts[pair] for pair in itertools.product(range(length), repeat=2)), 50)
    # Rows and columns have fixed sums: (length - 1)**2 degrees of freedom. Five standard deviations and a bit.
    freedom = (length - 1) ** 2
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 10


@pytest.mark.parametrize("length", [3, 4, 6, 7])
def test_neighbours_go_to_every_pair_of_places_alike(length: int) -> None:
    pairs, firsts = list(itertools.permutations(range(length), 2)), torch.arange(2)
    counts: Counter[tuple[int, ...]] = Counter(
        tuple(Permutation(length, seed, 1).order(firsts).tolist()) for seed in range(100 * len(pairs))
    )
    freedom = len(pairs) - 1
    assert chi_square((counts[pair] for pair in pairs), 100) < freedom + 5 * (2 * freedom) ** 0.5 + 10


def test_the_distance_between_neighbours_is_spread_evenly() -> None:
    length, bins = 2**20 + 7, 64
    order = Permutation(length, 5).order(torch.arange(length))
    distances = (order[1:] - order[:-1]) % length
    counts = torch.bincount(distances * bins // length, minlength=bins).tolist()
    assert chi_square(counts, (length - 1) / bins) < 63 + 5 * (2 * 63) ** 0.5


@pytest.mark.parametrize("length", [10**8, 10**9, 2**40, 2**62])
def test_long_permutations_are_computed_only_at_the_indices_asked_for(length: int) -> None:
    firsts = Permutation(length, 7, 1).order(torch.arange(10_000))
    lasts = Permutation(length, 7, 1).order(torch.arange(length - 10_000, length))
    values = torch.cat([firsts, lasts])
    assert len(set(values.tolist())) == 20_000
    assert int(values.min()) >= 0
    assert int(values.max()) < length
    middle = float(values.double().mean()) / length
    assert abs(middle - 0.5) < 5 * (1 / 12 / 20_000) ** 0.5


def test_another_process_has_the_same_order() -> None:
    program = (
        "import torch; from edriver.worker.sampler.permutation import Permutation; "
        "print(Permutation(1000, 4, 2).order(torch.arange(1000)).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert run.stdout.strip() == str(whole(1000, 4, 2))
