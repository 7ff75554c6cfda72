"""The states of the random number generators: Python's, numpy's and torch's global ones.

Kept at every boundary, so that a step that is done again draws what it drew the first time. They are each worker's own
and are never synced. Libraries that the script does not use are not imported.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any

_WORDS = 624
"""Of 4 bytes: the state of a Mersenne Twister, beside a position in it."""

_FIRST_WORDS = 16

_GENERATOR: Any = random.getstate.__self__  # type: ignore[attr-defined]  # the one behind the module's functions


class RandomStates:
    """What the generators would draw next, as of the last `keep`."""

    def __init__(self) -> None:
        self._python: Any = None
        self._python_look = _Look()
        self._torch: Any = None
        self._cuda: Any = None
        self._numpy: Any = None
        self._numpy_look = _Look()
        self._numpy_source: Any = None

    def keep(self) -> None:
        """Remember all states."""
        self._keep_python()
        if torch := sys.modules.get("torch"):
            self._torch = torch.get_rng_state()
            self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        if numpy := sys.modules.get("numpy"):
            self._keep_numpy(numpy.random)

    def bring_back(self) -> None:
        """Go back to what was kept; a generator of which nothing was kept stays."""
        if self._python is not None:
            random.setstate(self._python)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)
        if self._cuda is not None:
            sys.modules["torch"].cuda.set_rng_state(self._cuda)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    # Asking Python's and numpy's generators for their state takes 30 and 50 microseconds. Most scripts draw nothing
    # from them between two boundaries, which a look at their memory tells; but not of a second normal number that was
    # drawn with the first and waits.

    def _keep_python(self) -> None:
        if self._python_look.same() and self._python[2] is None and _GENERATOR.gauss_next is None:
            return
        self._python = random.getstate()
        *words, position = self._python[1]
        self._python_look = _Look.at_python(words, position)

    def _keep_numpy(self, generators: Any) -> None:
        source = generators.get_bit_generator()
        if source is self._numpy_source and self._numpy_look.same() and not self._numpy["has_gauss"]:
            return
        self._numpy = generators.get_state(legacy=False)
        self._numpy_source = source
        known = type(source).__name__ == "MT19937"
        # mt19937_state: the words, then the position.
        self._numpy_look = _Look(source.ctypes.state_address, 4 * _WORDS) if known else _Look()


class _Look:
    """What a Mersenne Twister's memory looks like: its first words, all of which change when it starts again, and its
    position, which moves with every word that is drawn.

    Args:
        first: the address of the first word.
        position: where the position is, in bytes from there. None: it is not known how to look.
    """

    def __init__(self, first: int = 0, position: int | None = None) -> None:
        self._parts: tuple[Any, ...] = ()
        if position is not None:
            words = (ctypes.c_uint32 * _FIRST_WORDS).from_address(first)
            self._parts = (words, ctypes.c_int32.from_address(first + position))
        self._seen = tuple(map(bytes, self._parts))

    @classmethod
    def at_python(cls, words: list[int], position: int) -> _Look:
        """A look at Python's own generator, if it lies in memory as CPython's RandomObject: position, then words."""
        first = id(_GENERATOR) + object.__basicsize__ + 4
        expected = struct.pack(f"i{_WORDS}I", position, *words)
        fits = _GENERATOR.__sizeof__() >= object.__basicsize__ + len(expected)
        if fits and ctypes.string_at(first - 4, len(expected)) == expected:
            return cls(first, -4)
        return cls()

    def same(self) -> bool:
        """Whether it still looks so; False where it is not known how to look."""
        return self._parts != () and tuple(map(bytes, self._parts)) == self._seen
