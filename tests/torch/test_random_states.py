"""Random states: what is drawn after a boundary is drawn again after a return to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from edriver.worker.copies.random_states import RandomStates

DRAWS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "random": random.random,
    "random, a normal number": lambda: random.gauss(0, 1),
    "random, so many words that it starts again": lambda: random.getrandbits(32 * 624),
    "random, a seed": lambda: random.seed(5),
    "numpy": numpy.random.random,
    "numpy, a normal number": numpy.random.normal,
    "numpy, so many words that it starts again": lambda: numpy.random.bytes(4 * 624),
    "numpy, a seed": lambda: numpy.random.seed(5),
    "torch": lambda: torch.rand(1),
}


def numbers() -> tuple[float, ...]:
    """Of every kind, so that no state is left unseen."""
    found = random.random(), random.gauss(0, 1), float(numpy.random.random()), float(numpy.random.normal())
    return (*found, float(torch.rand(1)))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_after_a_return_to_a_boundary_repeat(draw: Callable[[], Any]) -> None:
    states = RandomStates()
    states.keep()
    for _ in range(4):  # the second normal number is drawn with the first
        draw()
        states.keep()
        first = numbers()
        states.bring_back()
        assert numbers() == first
        states.bring_back()


def test_another_generator_of_numpys_is_kept() -> None:
    states = RandomStates()
    states.keep()
    set_bit_generator: Any = vars(numpy.random)["set_bit_generator"]  # numpy's stub leaves it out
    before = vars(numpy.random)["get_bit_generator"]()
    try:
        for generator in (numpy.random.MT19937(3), numpy.random.PCG64(3)):
            set_bit_generator(generator)
            states.keep()
            first = numbers()
            states.bring_back()
            assert numbers() == first
    finally:
        set_bit_generator(before)
