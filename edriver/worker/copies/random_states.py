"""The states of the random number generators: Python's, numpy's and torch's global ones.

Kept at every boundary, so that a step that is done again draws what it drew the first time. They are each worker's own,
and are not part of a sync; workers that compute a step together begin each round with those of one of them. Libraries
that the script does not use are not imported.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from edriver.worker.backend.numpy_random import GlobalGenerator


class RandomStates:
    """What the generators would draw next, as of the last `keep`."""

    def __init__(self) -> None:
        self._python: Any = None
        self._torch: Any = None
        self._cuda: Any = None
        self._numpy: Any = None
        self._numpy_generator = GlobalGenerator()

    def keep(self) -> None:
        """Remember all states."""
        self._python = random.getstate()
        if torch := sys.modules.get("torch"):
            self._torch = torch.get_rng_state()
            self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        self._numpy = self._numpy_generator.state()

    def kept(self) -> dict[str, Any]:
        """What was kept, for a checkpoint; nothing of it is written to later."""
        return {"python": self._python, "torch": self._torch, "cuda": self._cuda, "numpy": self._numpy}

    def take(self, kept: dict[str, Any]) -> None:
        """Take what was kept by another process as one's own. A device that is not in use here is left out."""
        self._python, self._torch, self._numpy = kept["python"], kept["torch"], kept["numpy"]
        torch = sys.modules.get("torch")
        self._cuda = kept["cuda"] if torch is not None and torch.cuda.is_initialized() else None
        if "numpy.random" not in sys.modules:
            self._numpy = None

    def text(self) -> str:
        """What was kept, for another worker to take: see `take_text`."""
        return json.dumps(self.kept(), default=lambda array: array.tolist())

    def take_text(self, text: str) -> None:
        """Take what another worker has kept, and given as `text`."""
        kept = json.loads(text)
        version, numbers, gauss = kept["python"]
        kept["python"] = version, tuple(numbers), gauss
        if torch := sys.modules.get("torch"):
            for name in ("torch", "cuda"):
                if kept[name] is not None:
                    kept[name] = torch.tensor(kept[name], dtype=torch.uint8, device="cpu")
        self.take(kept)

    def bring_back(self) -> None:
        """Go back to what was kept; a generator of which nothing was kept stays."""
        if self._python is not None:
            random.setstate(self._python)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)
        if self._cuda is not None:
            sys.modules["torch"].cuda.set_rng_state(self._cuda)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
