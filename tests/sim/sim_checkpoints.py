"""The checkpoint servers of a simulated run, and what must hold of what they keep."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from edriver.model import actions, events
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, MemoryCheckpoint, Shard, ShardCopy
from tests.sim.checking import check
from tests.sim.fabric import Severed
from tests.sim.sim_hosts import SimHost

if TYPE_CHECKING:
    from tests.sim.world import World

LAYOUT = b"layout"

COPY_SECONDS = (0.01, 5.0)
"""A copy takes longer than the time from one save to the next, or not."""


class SimCheckpoints:
    """All servers, by the agents of their hosts.

    Args:
        world: the rest of the run.
        rng: how long copies take.

    Attributes:
        reported: what each host has told the driver that it holds, by its name.
        copied: the newest checkpoint of which two hosts had told the driver that they hold each shard,
        losses: and the hosts that have been lost since.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._held: dict[int, set[Shard]] = {}
        self._order: dict[int, actions.KeepCheckpoints] = {}
        self._fetching: set[tuple[int, Shard]] = set()
        self.reported: dict[str, set[Shard]] = {}
        self.copied: CheckpointId | None = None
        self.losses = 0

    # ---- the servers -----------------------------------------------------------------------------------------

    def save(self, host: SimHost, checkpoint: CheckpointId, rank: int) -> None:
        """A worker has committed a shard."""
        held = self._held.setdefault(host.agent_id, set())
        held.add(Shard(checkpoint, rank, LAYOUT, 100))
        # Checkpoints of a round that is over are no longer written: what is not whole of them is forgotten.
        order = self._order.get(host.agent_id)
        if order is not None:
            self._forget(host, order)
        self._report(host)

    def keep(self, host: SimHost, order: actions.KeepCheckpoints) -> None:
        """An order of the driver has arrived."""
        self._order[host.agent_id] = order
        self._held.setdefault(host.agent_id, set())
        self._forget(host, order)
        for copy in order.copies:
            if (host.agent_id, copy.shard) not in self._fetching:
                self._fetching.add((host.agent_id, copy.shard))
                self._world.clockwork.after(self._rng.uniform(*COPY_SECONDS), partial(self._fetch, host, copy))
        self._report(host)

    def _forget(self, host: SimHost, order: actions.KeepCheckpoints) -> None:
        held = self._held[host.agent_id]
        latest = max((shard.checkpoint.round_id for shard in held), default=RoundId(0, 0))
        held -= {
            shard
            for shard in held
            if shard.checkpoint not in order.keep
            and not (shard.checkpoint > order.newest and shard.checkpoint.round_id == latest)
        }

    def _fetch(self, host: SimHost, copy: ShardCopy) -> None:
        self._fetching.discard((host.agent_id, copy.shard))
        order = self._order.get(host.agent_id)
        source = int(copy.address)
        original = {shard for shard in self._held.get(source, ()) if replace(shard, copy=False) == copy.shard}
        wanted = order is not None and copy in order.copies
        if wanted and original and host.alive and self._is_alive(source):
            self._held[host.agent_id].add(replace(copy.shard, copy=True))
            self._report(host)

    def _report(self, host: SimHost) -> None:
        found = tuple(sorted(self._held[host.agent_id], key=str))
        held = events.CheckpointsHeld(host.name, host.agent_id, str(host.agent_id), found)
        host.up.send(lambda: self._deliver(host, held))

    def _deliver(self, host: SimHost, held: events.CheckpointsHeld) -> None:
        if not host.abandoned and host.alive:
            self.reported[host.name] = set(held.shards)
            self._note_copied()
            self._world.driver.feed(held)

    def _is_alive(self, agent_id: int) -> bool:
        return any(host.agent_id == agent_id and host.alive for host in self._world.agents.hosts.values())

    # ---- what must hold --------------------------------------------------------------------------------------

    def load(self, start: MemoryCheckpoint) -> int:
        """A member reads all shards; returns the step.

        Raises:
            Severed: a host is gone that has one.
        """
        for rank, holder in enumerate(start.holders):
            agent_id = int(start.addresses[holder])
            if not self._is_alive(agent_id):
                raise Severed
            found = {(shard.checkpoint, shard.rank) for shard in self._held.get(agent_id, ())}
            check((start.checkpoint, rank) in found, f"shard {rank} of {start.checkpoint} is gone, and its host is not")
        return start.checkpoint.step

    def lost(self, host: str) -> None:
        """The driver knows that a host's agent is lost, or has ended it."""
        if self.reported.pop(host, None):
            self.losses += 1

    def let_go(self, host: str) -> None:
        """The driver ends the agent of a host that it needs no more."""
        before = max(self._whole(self.reported), default=None)
        self.lost(host)
        after = max(self._whole(self.reported), default=None)
        check(after == before or not self.reported, f"{host} is let go, which alone has a shard of {before}")

    def _note_copied(self) -> None:
        holders: dict[CheckpointId, dict[int, int]] = {}
        for shards in self.reported.values():
            for shard in shards:
                ranks = holders.setdefault(shard.checkpoint, {})
                ranks[shard.rank] = ranks.get(shard.rank, 0) + 1
        for checkpoint in sorted(holders, reverse=True):
            ranks = holders[checkpoint]
            if len(ranks) == checkpoint.size and min(ranks.values()) > 1:
                if self.copied is None or checkpoint >= self.copied:
                    self.copied, self.losses = checkpoint, 0
                return

    def round_begins(self, start: MemoryCheckpoint | None) -> None:
        """A round is assigned."""
        check(
            self.copied is None or self.losses > 1 or (start is not None and start.checkpoint >= self.copied),
            f"a round starts from {start}, and {self.copied} had its copies before {self.losses} hosts were lost",
        )
        hosts = self._world.driver.core.roster.hosts
        newest = max(self._whole({h for h in self.reported if h in hosts and hosts[h].connected}), default=None)
        begins = None if start is None else start.checkpoint
        check(begins == newest, f"a round starts from {begins}, and the newest whole one is {newest}")

    def _whole(self, hosts: Iterable[str]) -> set[CheckpointId]:
        """The checkpoints of which these hosts have all shards."""
        ranks: dict[CheckpointId, set[int]] = {}
        for shard in chain.from_iterable(self.reported[host] for host in hosts):
            ranks.setdefault(shard.checkpoint, set()).add(shard.rank)
        return {checkpoint for checkpoint, found in ranks.items() if len(found) == checkpoint.size}
