"""Which checkpoint in memory hosts write to disk, and how far they are. Part of the core.

One is written at a time. Each host writes the shards that it holds, and the host of rank 0's shard leads: it begins the
folder, whose name the others then get, and completes the checkpoint once all have written theirs. If a host is lost
meanwhile, another attempt begins, with the newest checkpoint. If one cannot write, the attempt has failed, and the next
begins when another checkpoint is due: a full disk is not written to at once again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from edriver.model.events import CheckpointsHeld
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, DiskTarget, DiskWrite

Key: TypeAlias = tuple[CheckpointId, bytes]
"""A checkpoint and its layout."""


@dataclass(slots=True, eq=False)
class DiskWrites:
    """What is written to disk.

    Attributes:
        writing: the checkpoint that hosts are writing, if any: they keep it meanwhile.
        on_disk: the last one that was completed, if any.
        wanted: whether the newest whole one is to be written next.
        urgent: whether it is written as fast as that goes: the run has ended.
    """

    STATE: ClassVar = ("writing", "on_disk", "wanted", "_seen", "_number", "_target", "_leader", "_ranks")

    writing: Key | None = None
    on_disk: Key | None = None
    wanted: bool = False
    urgent: bool = False
    _seen: Key | None = None
    _number: int = 0
    _target: DiskTarget | None = None
    _leader: str = ""
    _ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def see(self, key: Key, target: DiskTarget | None) -> None:
        """A checkpoint is whole, and belongs on disk there; None: nowhere."""
        if target is not None and target.due and (self._seen is None or key > self._seen):
            self._seen, self.wanted = key, True

    def begin(self, key: Key, target: DiskTarget, ranks: Mapping[str, tuple[int, ...]]) -> None:
        """Have hosts write a checkpoint.

        Args:
            key: which.
            target: where to.
            ranks: whose shards each host writes.
        """
        assert self.writing is None, "one at a time"
        self.writing, self.wanted, self._target = key, False, target
        self._number += 1
        self._ranks = dict(ranks)
        self._leader = next(host for host, mine in ranks.items() if 0 in mine)

    def advance(self, held: Mapping[str, CheckpointsHeld]) -> None:
        """Look how far hosts are.

        Args:
            held: what each host has said last.
        """
        if self.writing is None:
            return
        if not self._ranks.keys() <= held.keys():
            self.writing, self.wanted = None, True
            return
        reports = {host: self._report(held[host]) for host in self._ranks}
        if any(report.trouble for report in reports.values()):
            self.writing = None
        elif reports[self._leader].sealed:
            self.on_disk, self.writing = self.writing, None

    def trouble(self, held: Mapping[str, CheckpointsHeld]) -> str:
        """Why the last write has failed, with the host; empty: it has not."""
        found = ((host, self._report(held[host]).trouble) for host in self._ranks if host in held)
        return next((f"{host}: {trouble}" for host, trouble in found if trouble), "")

    def order(self, host: str, held: Mapping[str, CheckpointsHeld]) -> DiskWrite | None:
        """What a host is to write now; None: nothing, or not yet."""
        if self.writing is None or self._target is None or host not in self._ranks:
            return None
        name = "" if host == self._leader else self._report(held[self._leader]).name
        if host != self._leader and not name:
            return None
        seal = host == self._leader and all(self._report(held[each]).written for each in self._ranks)
        return DiskWrite(self._number, *self.writing, self._ranks[host], self._target, name, seal, self.urgent)

    def _report(self, held: CheckpointsHeld) -> DiskReport:
        report = held.disk
        return report if report is not None and report.number == self._number else DiskReport(self._number)
