"""Requests of an operator for a checkpoint on disk. Part of the core.

A request outlives the round in which it was made. In elastic mode rank 0 of the round that trains is asked; if it has
not met the request when the round ends, or is lost, rank 0 of the next one is asked. In restart mode nobody is: hosts
write what they hold in memory, whatever becomes of the round (disk_writes.py).

Requests are numbered, and a checkpoint that is begun after one meets all before it as well. So two requests at once
come to one checkpoint, and whatever writes the next one after a write that has failed meets it, too: the schedule, or
another rank 0.

A worker of an older release does not report what it has written: it is asked once in each round.
"""

from __future__ import annotations

from dataclasses import dataclass

from edriver.driver.core.disk_writes import Key
from edriver.model.ids import NO_ROUND, RoundId


@dataclass(slots=True, eq=False)
class SaveRequests:
    """The requests of a run.

    Attributes:
        last: the number of the last one, from 1; 0: there was none.
        met: all up to this number are met.
        requester: who has made the last one, as far as that is known.
    """

    last: int = 0
    met: int = 0
    requester: str = ""
    _asked: tuple[RoundId, int] = (NO_ROUND, 0)
    _newest: Key | None = None
    _newer: bool = True

    @property
    def open(self) -> bool:
        """Whether a request is not met yet."""
        return self.met < self.last

    def add(self, requester: str, newest: Key | None, *, newer: bool) -> None:
        """An operator asks for a checkpoint.

        Args:
            requester: the operator.
            newest: the newest checkpoint in memory, or on disk, if any.
            newer: whether only those that are newer meet the request, and not that one.
        """
        self.last += 1
        self.requester, self._newest, self._newer = requester, newest, newer

    def ask(self, round_id: RoundId) -> bool:
        """Whether rank 0 of this round is to be asked now; True once for each round and last request."""
        if not self.open or self._asked == (round_id, self.last):
            return False
        self._asked = round_id, self.last
        return True

    def note_written(self, number: int) -> None:
        """A worker has written a checkpoint that it had begun after it was asked for this number."""
        self.met = max(self.met, min(number, self.last))

    def note_on_disk(self, key: Key | None) -> None:
        """The newest checkpoint that hosts have written from memory, if any."""
        if self.is_met_by(key):
            self.met = self.last

    def is_met_by(self, key: Key | None) -> bool:
        """Whether a checkpoint in memory meets the last request once it is on disk."""
        if key is None or self._newest is None:
            return key is not None
        return key > self._newest or (key == self._newest and not self._newer)
