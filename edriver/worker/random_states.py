"""The states of the random number generators: Python's, numpy's and torch's global ones.

Kept at every boundary, so that a step that is done again draws what it drew the first time. They are each worker's own
and are never synced. Libraries that the script does not use are not imported.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

_WORDS, _POSITION = 16, 624 * 4
"""Where to look in numpy's mt19937_state, 624 words of 4 bytes and a position: the position moves with every word that
is drawn, and all words change when it starts again."""


class RandomStates:
    """What the generators would draw next, as of the last `keep`."""

    def __init__(self) -> None:
        self._python: Any = None
        self._torch: Any = None
        self._cuda: Any = None
        self._numpy: Any = None
        self._numpy_source: Any = None
        self._numpy_address = 0
        self._numpy_mark = b""

    def keep(self) -> None:
        """Remember all states."""
        self._python = random.getstate()
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

    def copy_from(self, other: RandomStates) -> None:
        """Remember what another remembers."""
        self.__dict__.update(other.__dict__)

    def _keep_numpy(self, generators: Any) -> None:
        # get_state takes 50 microseconds. Most scripts draw nothing from it between two boundaries, which a look at its
        # memory tells, but for a second normal number that was drawn with the first.
        source = generators.get_bit_generator()
        if source is not self._numpy_source:
            self._numpy_source, self._numpy_mark = source, b""
            known = type(source).__name__ == "MT19937"
            self._numpy_address = source.ctypes.state_address if known else 0
        address, mark = self._numpy_address, b""
        if address:
            mark = ctypes.string_at(address, _WORDS) + ctypes.string_at(address + _POSITION, 4)
            if mark == self._numpy_mark and not self._numpy["has_gauss"]:
                return
        self._numpy = generators.get_state(legacy=False)
        self._numpy_mark = mark
