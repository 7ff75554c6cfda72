"""In which order ranks do things: one says what it has done, others wait for that. No clock has a part in it."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import torch.distributed as dist

LIMIT = timedelta(seconds=100)


class Turns:
    """A board on which the ranks of `run_ranks` leave words for one another.

    Args:
        rank: of this process; all ranks make one, in the default group.
    """

    _kept: ClassVar[list[Turns]] = []
    """For the life of the process: others may still wait for what rank 0's has been told."""

    def __init__(self, rank: int) -> None:
        self._kept.append(self)
        port = [0]
        if rank == 0:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)  # type: ignore[attr-defined]
            port = [self._store.port]
        dist.broadcast_object_list(port, src=0)
        if rank:
            self._store = dist.TCPStore("127.0.0.1", port[0], is_master=False, timeout=LIMIT)  # type: ignore[attr-defined]
        self.rank = rank

    def say(self, word: str, rank: int | None = None) -> None:
        """Leave a word, of this rank's or in another's name."""
        self._store.set(f"{word} {self.rank if rank is None else rank}", "")

    def hear(self, word: str, *ranks: int) -> None:
        """Wait until these ranks have left a word. Raises torch's DistStoreError where they do not."""
        self._store.wait([f"{word} {rank}" for rank in ranks], LIMIT)
