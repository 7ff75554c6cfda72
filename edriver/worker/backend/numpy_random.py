"""numpy's global random number generator. Imports numpy only where the script has."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, Final

STATE_BYTES: Final = 2500
"""Of a Mersenne Twister: 624 words and the place among them."""


class GlobalGenerator:
    """The state of numpy's global generator at a boundary.

    Both public ways (get_state, bit_generator.state) convert it to 624 Python integers, which takes 30 to 65
    microseconds, as much as the rest of a boundary; comparing the bytes takes 1. So this asks numpy only if the
    generator has been used since the last boundary.

    Interface: that a Mersenne Twister's state is in the first 2,500 bytes at the address that numpy gives for use with
    ctypes. If that does not hold for a test generator, or the global one is of another kind, this asks numpy at each
    boundary.
    """

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None
        self._generator: object = None
        self._bytes = b""

    def state(self) -> dict[str, Any] | None:
        """What numpy.random.set_state takes; None: numpy's random numbers are not imported."""
        random = sys.modules.get("numpy.random")
        if random is None:
            return None
        generator = random.get_bit_generator() if hasattr(random, "get_bit_generator") else None  # numpy < 1.24
        kind: type = type(generator)
        if kind.__name__ != "MT19937" or not _is_as_known(kind):
            state: dict[str, Any] = random.get_state(legacy=False)
            return state
        now = _bytes_of(generator)
        if generator is not self._generator or now != self._bytes or self._has_normal():
            self._state = random.get_state(legacy=False)
            self._generator, self._bytes = generator, now
        return self._state

    def _has_normal(self) -> bool:
        """Whether a normal number is left that was drawn with another: to take it does not change the bytes."""
        return self._state is None or bool(self._state["has_gauss"])


def _bytes_of(generator: Any) -> bytes:
    return ctypes.string_at(generator.ctypes.state_address, STATE_BYTES)


@cache
def _is_as_known(kind: type) -> bool:
    generator = kind(0)
    words = generator.state["state"]["key"].tobytes()
    before = _bytes_of(generator)
    generator.random_raw(1)
    started_again = _bytes_of(generator)
    generator.random_raw(1)
    return before.startswith(words) and len({before, started_again, _bytes_of(generator)}) == 3
