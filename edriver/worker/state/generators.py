"""Handlers of random number generators of the script's own: torch.Generator, random.Random, numpy's.

They are brought back in place, so that a loader or a sampler that has one draws on from where the state is. A newcomer
receives the source's.
"""

from __future__ import annotations

import random
from typing import Any, Final

import torch

from edriver.worker.copies.small_copy import Fixed
from edriver.worker.state.handlers import StateHandler, register_handler

_NUMPY_GENERATORS: Final = ("numpy.random._generator.Generator", "numpy.random.bit_generator.BitGenerator")
_NUMPY_RANDOM_STATE: Final = "numpy.random.mtrand.RandomState"


class _GeneratorHandler(StateHandler):
    """A generator whose state is asked for as a copy, which nothing writes to."""

    def keep(self) -> Any:
        """The state, whatever its size: some have 5 KB."""
        return Fixed(self.capture())

    def bring_back(self, kept: Any) -> None:
        """Go back to it."""
        self.load(kept.contents)


class TorchGeneratorHandler(_GeneratorHandler):
    """A torch.Generator of any device."""

    def capture(self) -> Any:
        """Its device's type, and its state."""
        return {"device": self.value.device.type, "state": self.value.get_state()}

    def load(self, tree: Any) -> None:
        """Set it; torch looks at the memory of the tensor itself, which must not be a view.

        Raises:
            ValueError: it is the state of a generator of another kind of device.
        """
        if tree["device"] != self.value.device.type:
            raise ValueError(f"it is a generator on {self.value.device.type} here and on {tree['device']} there")
        self.value.set_state(tree["state"].clone())


class PythonGeneratorHandler(_GeneratorHandler):
    """A random.Random."""

    def __init__(self, value: random.Random) -> None:
        super().__init__(value)
        if isinstance(value, random.SystemRandom):
            raise TypeError(
                "a SystemRandom has no state: its numbers cannot be repeated after a failure, and differ between "
                "workers; use random.Random"
            )

    def capture(self) -> Any:
        """Its state."""
        return self.value.getstate()

    def load(self, tree: Any) -> None:
        """Set it."""
        self.value.setstate(tree)


class NumpyGeneratorHandler(_GeneratorHandler):
    """A numpy.random.Generator, or one of its bit generators."""

    def capture(self) -> Any:
        """The state of its bit generator."""
        return self._bits.state

    def load(self, tree: Any) -> None:
        """Set it.

        Raises:
            ValueError: it is the state of another kind of bit generator.
        """
        own = type(self._bits).__name__
        if tree["bit_generator"] != own:
            raise ValueError(f"it draws from a {own} here and from a {tree['bit_generator']} there")
        self._bits.state = tree

    @property
    def _bits(self) -> Any:
        return getattr(self.value, "bit_generator", self.value)


class NumpyRandomStateHandler(_GeneratorHandler):
    """A numpy.random.RandomState."""

    def capture(self) -> Any:
        """Its state."""
        return self.value.get_state(legacy=False)

    def load(self, tree: Any) -> None:
        """Set it."""
        self.value.set_state(tree)


def register_generators() -> None:
    """Have states keep generators. numpy is not imported for that."""
    register_handler(torch.Generator, TorchGeneratorHandler)
    register_handler(random.Random, PythonGeneratorHandler)
    for name in _NUMPY_GENERATORS:
        register_handler(name, NumpyGeneratorHandler)
    register_handler(_NUMPY_RANDOM_STATE, NumpyRandomStateHandler)
