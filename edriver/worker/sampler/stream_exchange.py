"""How the workers of a round exchange reports: through its store, beside the collectives of the script."""

from __future__ import annotations

from typing import Final

from edriver.common.ids import NO_ROUND
from edriver.worker import topology
from edriver.worker.backend import torch_groups

_PREFIX: Final = "edriver/stream"

_exchanges = (NO_ROUND, 0)


class Exchange:
    """One exchange, of a text of each worker. All workers make their exchanges in the same order.

    Args:
        text: this worker's.

    Raises:
        RuntimeError: the connection to the store broke.
    """

    def __init__(self, text: str) -> None:
        global _exchanges
        self._place = topology.current()
        self._own = text
        self._number = _exchanges[1] + 1 if _exchanges[0] == self._place.round_id else 1
        _exchanges = (self._place.round_id, self._number)
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
