"""How the workers of a round exchange reports: through its store, beside the collectives of the script."""

from __future__ import annotations

from typing import Final

from edriver.worker import context
from edriver.worker.backend import torch_groups

_PREFIX: Final = "edriver/stream"


class Exchange:
    """One exchange, of a text of each worker. All workers make their exchanges in the same order.

    Args:
        text: this worker's.

    Raises:
        RuntimeError: the connection to the store broke.
    """

    def __init__(self, text: str) -> None:
        process = context.current
        self._place = process.place.assignment
        self._own = text
        self._number = process.counters.next(_PREFIX, self._place.round_id)
        if self._place.size > 1:
            torch_groups.default_store().set(self._key(self._number, self._place.rank), text)

    def texts(self) -> list[str]:
        """What all workers have given, in the order of their ranks; waits for them.

        Raises:
            RuntimeError: the connection to the store broke.
        """
        if self._place.size == 1:
            return [self._own]
        store = torch_groups.default_store()
        found = store.multi_get([self._key(self._number, rank) for rank in range(self._place.size)])
        # All have begun this exchange, so all have read what was given in the last one.
        store.delete_key(self._key(self._number - 1, self._place.rank))
        return [bytes(text).decode() for text in found]

    def _key(self, number: int, rank: int) -> str:
        return f"{_PREFIX}/{number}/{rank}"
