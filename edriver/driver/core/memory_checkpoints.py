"""Checkpoints in memory: which are whole, what each host keeps and copies, and from which one a round starts.

Hosts report the shards that they hold, again after each change, and get an order that says all of what they are to
keep. So nothing depends on a message that is lost or late.

A checkpoint is *whole* once a shard of each of its ranks has been committed, all with one layout. It is *copied* once
each shard lies on as many other hosts as `copies` says, or on all hosts with a checkpoint server if these are fewer:
then no loss of so many hosts takes it away. What hosts keep is

    newest      the newest that is whole: a round after a failure of workers starts from it
    copying     the one that hosts are copying: a newer one waits for its turn, or a slow link would never finish one
    copied      the newest that is copied: a round after the loss of a host starts from it
    restored    the one that the current round has started from, until it has a newer one
    writing     the one that hosts are writing to disk (disk_writes.py)

and what is newer than `newest`, as long as its ranks may write. Hosts form a ring in the order of discovery, and copies
go half round it: neighbours tend to share a rack, a switch and a power supply. A host that is to be left gets none, and
its agent stays until another host has what it alone holds. Part of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import ClassVar, NamedTuple

from edriver.driver.core.disk_writes import DiskWrites, Key
from edriver.model.actions import Action, KeepCheckpoints
from edriver.model.events import CheckpointsHeld
from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.memory_checkpoint import CheckpointId, DiskTarget, MemoryCheckpoint, Shard, ShardCopy
from edriver.model.records import HostRecord


@dataclass(slots=True, eq=False)
class _Holders:
    """Who holds the shards of one checkpoint.

    Attributes:
        ranks: for each rank, the hosts that have its shard, and whether theirs is a copy.
        enough: the number of ranks whose shards lie on as many hosts as they should.
        was_whole: whether there was a shard of each rank at some time; a checkpoint server may be lost.
        passed: the ranks that have saved a later step of the round, and never this one: their host, and that step.
    """

    ranks: dict[int, dict[str, bool]] = field(default_factory=dict)
    enough: int = 0
    was_whole: bool = False
    passed: dict[int, tuple[str, int]] = field(default_factory=dict)

    def count(self, wanted: int) -> None:
        """Count anew which shards lie on so many hosts."""
        self.enough = sum(len(hosts) >= wanted for hosts in self.ranks.values())


class MissedSave(NamedTuple):
    """Why checkpoints of a round do not become whole: a rank saves other steps than the others.

    Attributes:
        host: its host.
        rank: the rank.
        step: the step that it has not saved,
        later: and the one that it has saved instead.
    """

    host: str
    rank: int
    step: int
    later: int


@dataclass(slots=True, eq=False)
class MemoryCheckpoints:
    """The checkpoints that hosts hold in memory.

    Args:
        copies: the number of other hosts that are to have a copy of each shard.

    Attributes:
        newest: the newest that is whole; None: none is.
        copying: the one that hosts are copying, if any.
        copied: the newest that is copied, if any.
        restored: the one that the current round has started from, if any.
        disk: what of it is written to disk.
    """

    STATE: ClassVar = ("newest", "copying", "copied", "restored", "disk", "_held", "_ordered")

    copies: int = 1
    newest: Key | None = None
    copying: Key | None = None
    copied: Key | None = None
    restored: Key | None = None
    disk: DiskWrites = field(default_factory=DiskWrites)
    _held: dict[str, CheckpointsHeld] = field(default_factory=dict)
    _ordered: dict[str, KeepCheckpoints] = field(default_factory=dict)
    _holders: dict[Key, _Holders] = field(default_factory=dict)
    _wanted: int = 0
    _revision: int = 0
    _partners: dict[str, None] = field(default_factory=dict)
    _fetches: tuple[Key | None, tuple[str, ...], dict[str, tuple[ShardCopy, ...]]] = (None, (), {})
    _changed: bool = False

    def derive(self) -> None:
        """After a snapshot: find who holds what."""
        self._holders = {}
        self._wanted = min(self.copies + 1, len(self._held))
        for host, held in self._held.items():
            self._add(host, held.shards)
        for host, held in self._held.items():
            for shard in held.shards:
                self._pass(host, shard)
        self._changed = True

    # ---- what hosts hold -------------------------------------------------------------------------------------

    def note(self, held: CheckpointsHeld) -> None:
        """A host has said what it holds."""
        before = self._held.pop(held.host, None)
        shards, earlier = frozenset(held.shards), frozenset(before.shards if before else ())
        self._held[held.host] = held
        self._remove(held.host, earlier - shards)
        self._add(held.host, shards - earlier)
        if before is None or before.address != held.address or self._moves_copies(earlier - shards, shards - earlier):
            self._fetches = None, (), {}
        for shard in shards - earlier:
            self._pass(held.host, shard)
        self._hosts_changed()

    def _moves_copies(self, gone: frozenset[Shard], new: frozenset[Shard]) -> bool:
        """Whether hosts are to fetch any of the checkpoint that is being copied from elsewhere now: one that had it has
        it no more, or it was to be had as a copy alone, and there is another one.
        """
        if any(_key(shard) == self.copying for shard in gone):
            return True
        copied = (shard for shard in new if shard.copy and _key(shard) == self.copying)
        return any(all(self._holders[_key(shard)].ranks[shard.rank].values()) for shard in copied)

    def lose_host(self, host: str) -> None:
        """A host's agent is lost, and what it held with it."""
        self._ordered.pop(host, None)
        if (held := self._held.pop(host, None)) is not None:
            self._remove(host, held.shards)
            self._hosts_changed()

    def server_ended(self, host: str) -> None:
        """A host's checkpoint server has ended, and what it held with it. Another one may take its place."""
        self.lose_host(host)
        self._fetches = None, (), {}

    def _hosts_changed(self) -> None:
        self._changed = True
        wanted = min(self.copies + 1, len(self._held))
        if wanted != self._wanted:
            self._wanted = wanted
            for holders in self._holders.values():
                holders.count(wanted)

    def _remove(self, host: str, shards: Iterable[Shard]) -> None:
        for shard in shards:
            key = _key(shard)
            holders = self._holders[key]
            hosts = holders.ranks[shard.rank]
            holders.enough -= len(hosts) == self._wanted
            del hosts[host]
            if not hosts:
                del holders.ranks[shard.rank]
            if not holders.ranks:
                del self._holders[key]

    def _add(self, host: str, shards: Iterable[Shard]) -> None:
        for shard in shards:
            holders = self._holders.setdefault(_key(shard), _Holders())
            hosts = holders.ranks.setdefault(shard.rank, {})
            hosts[host] = shard.copy
            holders.enough += len(hosts) == self._wanted
            holders.was_whole |= len(holders.ranks) == shard.checkpoint.size

    def _pass(self, host: str, shard: Shard) -> None:
        """Earlier checkpoints of the round that a rank has a shard of, and not of these, stay without."""
        for (earlier, _), holders in self._holders.items():
            if (earlier.round_id, holders.was_whole) != (shard.checkpoint.round_id, False):
                continue
            if earlier.step < shard.checkpoint.step and shard.rank not in holders.ranks:
                holders.passed.setdefault(shard.rank, (host, shard.checkpoint.step))

    @property
    def missed(self) -> MissedSave | None:
        """A save that a rank has missed, if for that reason two checkpoints since the newest whole one never become
        whole. One alone may have lacked memory; then the worker says so.
        """
        newest = self._newest_whole()
        never = [key for key, each in self._holders.items() if each.passed and (newest is None or key > newest)]
        if len({checkpoint.step for checkpoint, _ in never}) < 2:
            return None
        first = min(never)
        rank, (host, later) = min(self._holders[first].passed.items())
        return MissedSave(host, rank, first[0].step, later)

    def _is_whole(self, key: Key) -> bool:
        holders = self._holders.get(key)
        return holders is not None and len(holders.ranks) == key[0].size

    def _newest_whole(self) -> Key | None:
        return max(filter(self._is_whole, self._holders), default=None)

    def _is_copied(self, key: Key) -> bool:
        holders = self._holders.get(key)
        return holders is not None and holders.enough == key[0].size

    @property
    def has_copies(self) -> bool:
        """Whether there are hosts between which shards are copied."""
        return self._wanted > 1

    def held(self, host: str) -> CheckpointsHeld | None:
        """What a host has said last; None: it has no checkpoint server."""
        return self._held.get(host)

    def nbytes(self, key: Key) -> int:
        """Bytes of a checkpoint's shards, copies aside; 0: no host has it any more."""
        return sum({shard.rank: shard.nbytes for shard in self._shards_of(key)}.values())

    def save_seconds(self, key: Key) -> float:
        """How long the save of a checkpoint has held up the training loop, on the slowest rank; 0: not known."""
        return max((shard.save_seconds for shard in self._shards_of(key)), default=0.0)

    def _shards_of(self, key: Key) -> Iterator[Shard]:
        """All of a checkpoint's shards that hosts hold, copies included."""
        every = {host for hosts in self._holders.get(key, _Holders()).ranks.values() for host in hosts}
        return (shard for host in every for shard in self._held[host].shards if _key(shard) == key)

    # ---- decisions -------------------------------------------------------------------------------------------

    @property
    def newest_for_disk(self) -> Key | None:
        """The newest whole checkpoint, if it belongs on disk."""
        newest = self._newest_whole()
        return None if newest is None or self._disk_target(newest) is None else newest

    @property
    def latest(self) -> Key | None:
        """The newest checkpoint that a host has a shard of, whole or not, or that is on disk."""
        on_disk = () if self.disk.on_disk is None else (self.disk.on_disk,)
        return max((*self._holders, *on_disk), default=None)

    def write_to_disk(self) -> Key | None:
        """Have the newest whole checkpoint written to disk: now, or the next one if there is none.

        Returns:
            it; None: there is none, or it is on disk, or does not belong there.
        """
        newest = self.newest_for_disk
        if newest is not None and newest == self.disk.on_disk:
            return None
        if newest is None or newest != self.disk.writing:
            self.disk.wanted = self._changed = True
        return newest

    def disk_trouble(self) -> str:
        """Why the last write to disk has failed, with the host; empty: it has not."""
        return self.disk.trouble(self._held)

    def start_from(self, available: Callable[[str], bool], since: RoundId = NO_ROUND) -> MemoryCheckpoint | None:
        """The newest checkpoint that a round can start from now, which it does: see `within_reach`."""
        found = self.within_reach(available, since)
        self.restored = None if found is None else (found.checkpoint, found.layout)
        self._changed = self._changed or found is not None
        return found

    def within_reach(self, available: Callable[[str], bool], since: RoundId = NO_ROUND) -> MemoryCheckpoint | None:
        """The newest checkpoint that a round could start from now.

        Args:
            available: whether a host can be reached.
            since: only those of later rounds count.
        """
        for key in sorted(filter(self._is_whole, self._holders), reverse=True):
            if key[0].round_id <= since:
                break
            if self.disk.on_disk is not None and key < self.disk.on_disk:
                break  # the one on disk is newer
            ranks = self._holders[key].ranks
            by_rank = [ranks[rank] for rank in sorted(ranks)]
            chosen = [min(filter(available, hosts), key=_originals(hosts), default="") for hosts in by_rank]
            if all(chosen):
                place = {host: number for number, host in enumerate(dict.fromkeys(chosen))}
                addresses = tuple(self._held[host].address for host in place)
                return MemoryCheckpoint(*key, addresses, tuple(place[host] for host in chosen))
        return None

    def is_needed(self, host: str) -> bool:
        """Whether a host alone holds a shard of a checkpoint that a round may start from."""
        for key in {self.newest, self.restored} - {None}:
            holders = self._holders.get(key)  # type: ignore[arg-type]
            if holders and any(hosts.keys() == {host} for hosts in holders.ranks.values()) and len(self._held) > 1:
                return True
        return False

    def orders(self, hosts: Mapping[str, HostRecord], revision: int, round_id: RoundId) -> list[Action]:
        """What hosts are to keep and to copy from now on, where that has changed.

        Args:
            hosts: all hosts, in the order of discovery.
            revision: grows when one of them changes.
            round_id: the current round.
        """
        if not self._changed and (not self._held or revision == self._revision):
            return []
        self._changed, self._revision = False, revision
        ring = tuple(host for host in hosts if host in self._held)
        self._partners = {host: None for host in ring if hosts[host].open_count}
        self.newest = self._newest_whole()
        self.copied = max(filter(self._is_copied, self._holders), default=None)
        if self.copying is not None and (not self._is_whole(self.copying) or self._is_copied(self.copying)):
            self.copying = None
        self.disk.advance(self._held)
        if self.newest is None:
            return []
        for key in filter(self._is_whole, self._holders):
            self.disk.see(key, self._disk_target(key))
        self._begin_to_write(self.newest)
        if self.copying is None and self.newest != self.copied:
            self.copying = self.newest
        if self.newest[0].round_id >= round_id:
            self.restored = None
        kept = self.newest, self.copying, self.copied, self.restored, self.disk.writing
        keep = sorted({key[0] for key in kept if key is not None})
        fetches = self._fetches_on(ring)
        actions: list[Action] = []
        for host in self._held:
            write = self.disk.order(host, self._held)
            order = KeepCheckpoints(host, self.newest[0], tuple(keep), fetches.get(host, ()), write)
            if order != self._ordered.get(host):
                self._ordered[host] = order
                actions.append(order)
        return actions

    def _begin_to_write(self, newest: Key) -> None:
        """Begin to write the newest whole checkpoint to disk, if one is due and none is being written."""
        target = self._disk_target(newest)
        if not self.disk.wanted or self.disk.writing is not None or target is None:
            return
        if newest == self.disk.on_disk:
            self.disk.wanted = False
            return
        ranks: dict[str, list[int]] = {}
        for rank, hosts in sorted(self._holders[newest].ranks.items()):
            ranks.setdefault(min(hosts, key=_originals(hosts)), []).append(rank)
        self.disk.begin(newest, target, {host: tuple(mine) for host, mine in ranks.items()})

    def _disk_target(self, key: Key) -> DiskTarget | None:
        """Where on disk a checkpoint belongs, as its rank 0 says; None: nowhere."""
        hosts = self._holders[key].ranks.get(0, {})
        return next((self._shard(host, key[0], 0).disk for host in hosts), None)

    def _fetches_on(self, ring: tuple[str, ...]) -> dict[str, tuple[ShardCopy, ...]]:
        """The shards that each host is to fetch. Those that it has got stay in its order, which so does not change."""
        if self._fetches[:2] == (self.copying, (*ring, "", *self._partners)):
            return self._fetches[2]
        fetches: dict[str, list[ShardCopy]] = {}
        partners = {host: self._partners_of(place, ring) for place, host in enumerate(ring)}
        if self.copying is not None:
            checkpoint, layout = self.copying
            for rank, hosts in sorted(self._holders[self.copying].ranks.items()):
                source = min(hosts.keys() & partners.keys(), key=_originals(hosts), default=None)
                if source is None:
                    continue  # discovery has dropped the host
                held = self._shard(source, checkpoint, rank)
                shard = Shard(checkpoint, rank, layout, held.nbytes, disk=held.disk)
                for partner in partners[source]:
                    fetches.setdefault(partner, []).append(ShardCopy(shard, self._held[source].address))
        made = {host: tuple(copies) for host, copies in fetches.items()}
        self._fetches = self.copying, (*ring, "", *self._partners), made
        return made

    def _partners_of(self, place: int, ring: tuple[str, ...]) -> list[str]:
        """The hosts that get copies of what the host at this place of the ring has."""
        first = (place + max(1, len(ring) // 2)) % len(ring)
        following = chain(islice(ring, first, None), islice(ring, first))
        return [*islice((host for host in following if host in self._partners and host != ring[place]), self.copies)]

    def _shard(self, host: str, checkpoint: CheckpointId, rank: int) -> Shard:
        shards = self._held[host].shards
        return next(shard for shard in shards if (shard.checkpoint, shard.rank) == (checkpoint, rank))


def _key(shard: Shard) -> Key:
    return shard.checkpoint, shard.layout


def _originals(hosts: Mapping[str, bool]) -> Callable[[str], tuple[bool, str]]:
    """Sorts hosts: those first whose shard is no copy."""
    return lambda host: (hosts[host], host)
