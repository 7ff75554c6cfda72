"""The states of the random number generators: Python's, numpy's and torch's global ones.

Kept at every boundary, so that a step that is done again draws what it drew the first time. They are each worker's own
and are never synced. Libraries that the script does not use are not imported.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

_MT19937_BYTES = 625 * 4
"""numpy's mt19937_state: 624 words and a position."""


class RandomStates:
    """What the generators would draw next, as of the last `keep`."""

    def __init__(self) -> None:
        self._python: Any = None
        self._torch: Any = None
        self._cuda: Any = None
        self._numpy: Any = None
        self._numpy_words = b""

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
        # get_state takes 50 microseconds. Most scripts draw nothing from it between two boundaries, which its words
        # tell at once, but for a second normal number that was drawn with the first.
        source = generators.get_bit_generator()
        words = b""
        if type(source).__name__ == "MT19937":
            words = ctypes.string_at(source.ctypes.state_address, _MT19937_BYTES)
            if words == self._numpy_words and not self._numpy["has_gauss"]:
                return
        self._numpy = generators.get_state(legacy=False)
        self._numpy_words = words
