"""Wrong variants of the core in restart mode, each of which its simulation must catch: see mutants.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from edriver.driver.core import roster
from edriver.driver.core.disk_writes import Key
from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Interrupt, Round
from edriver.driver.core.round_control import RoundControl
from edriver.driver.core.worker_losses import WorkerLosses
from edriver.model.actions import Action, KeepCheckpoints
from edriver.model.cause import Cause, CauseKind
from edriver.model.records import Worker
from tests.sim import scanning

Patch = Callable[[pytest.MonkeyPatch], None]


def old_processes_are_not_stopped(patch: pytest.MonkeyPatch) -> None:
    """A round that is over leaves its processes alone."""
    patch.setattr(RoundControl, "_stop_members", lambda _self, _current, _now: [])


def old_processes_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The next round forms while processes of the last one still end."""
    original = RoundControl._stop_members

    def stop_members(self: RoundControl, current: Round, now: float) -> list[Action]:
        actions = original(self, current, now)
        current.extend(now)
        return actions

    patch.setattr(RoundControl, "_stop_members", stop_members)


def an_ended_script_completes_the_run(patch: pytest.MonkeyPatch) -> None:
    """A member that fails counts as one that has run its whole script."""

    def exited(self: WorkerLosses, worker: Worker, _event: Any, now: float) -> list[Action]:
        self.rounds.complete_member(worker.worker_id, now)
        return []

    patch.setattr(WorkerLosses, "exited", exited)


def a_saved_checkpoint_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """After an agreed resize all are stopped at once."""

    def stop_saved(self: RoundControl, _current: Round, interrupt: Interrupt, now: float) -> list[Action]:
        assert interrupt.cause is not None
        return self.abort(interrupt.cause, now)

    patch.setattr(RoundControl, "_stop_saved", stop_saved)


def a_save_is_not_heard_of(patch: pytest.MonkeyPatch) -> None:
    """CheckpointSaved is ignored: every agreed restart lasts as long as its bound."""
    original = RoundControl._stop_saved

    def stop_saved(self: RoundControl, current: Round, interrupt: Interrupt, now: float) -> list[Action]:
        interrupt.saved.clear()
        return original(self, current, interrupt, now)

    patch.setattr(RoundControl, "_stop_saved", stop_saved)


def a_resize_is_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A change of the members spends --max-restarts."""
    patch.setattr(RoundControl, "_members_change", lambda *_: Cause(CauseKind.LEFT_ROUND))


def a_resize_stops_scripts_that_are_done(patch: pytest.MonkeyPatch) -> None:
    """A newcomer restarts the others when some have run the whole script: it may go on for ever."""
    original = RoundControl.run

    def run(self: RoundControl, current: Round, now: float) -> list[Action]:
        done, current.done = current.done, {} if current.done.keys() != current.members else current.done
        actions = original(self, current, now)
        current.done = done
        return actions

    patch.setattr(RoundControl, "run", run)


def a_failed_size_is_tried_until_the_run_ends(patch: pytest.MonkeyPatch) -> None:
    """Rounds of a size with which all raise are tried until the same error ends the run."""
    patch.setattr(NewSizes, "max_workers", property(lambda self: self.limit))
    patch.setattr(NewSizes, "allowed", lambda self, count: min(count, self.limit))


def only_the_newest_checkpoint_is_kept(patch: pytest.MonkeyPatch) -> None:
    """What has its copies is forgotten once a newer checkpoint is whole, before that has its own."""
    original = MemoryCheckpoints.orders

    def orders(self: MemoryCheckpoints, *arguments: Any) -> list[Action]:
        found = original(self, *arguments)
        return [replace(order, keep=(order.newest,)) for order in found if isinstance(order, KeepCheckpoints)]

    patch.setattr(MemoryCheckpoints, "orders", orders)


def a_checkpoint_is_whole_without_one_rank(patch: pytest.MonkeyPatch) -> None:
    """The shard of one rank may be missing."""

    def is_whole(self: MemoryCheckpoints, key: Key) -> bool:
        holders = self._holders.get(key)
        return holders is not None and len(holders.ranks) >= max(1, key[0].size - 1)

    patch.setattr(MemoryCheckpoints, "_is_whole", is_whole)


def a_lost_hosts_shards_are_still_there(patch: pytest.MonkeyPatch) -> None:
    """The loss of a host does not change what is believed to be held."""
    patch.setattr(MemoryCheckpoints, "lose_host", lambda _self, _host: None)


def a_host_is_let_go_with_what_it_alone_holds(patch: pytest.MonkeyPatch) -> None:
    """The agent of a drained host ends before its shards have been copied."""
    patch.setattr(MemoryCheckpoints, "is_needed", lambda _self, _host: False)


def a_round_has_a_part_of_a_replica(patch: pytest.MonkeyPatch) -> None:
    """All that are ready are in a round, whether their replica is whole or not."""
    patch.setattr(scanning, "_check_replicas", lambda *_: None)  # its rounds alone are to show it
    patch.setattr(Roster, "ready", property(lambda self: sum(w.in_run for w in map(self.workers.get, self.placed))))
    patch.setattr(Roster, "fitting", lambda _self, most: most)
    patch.setattr(Roster, "in_replicas", lambda _self, workers, most=math.inf: list(workers)[: int(min(most, 99))])


def a_replica_lies_on_any_two_hosts(patch: pytest.MonkeyPatch) -> None:
    """The slots of hosts are put together whatever their numbers are, also where a replica fits on one host."""

    def whole(size: int, hosts: Iterable[tuple[str, int, int]], most: float = math.inf) -> dict[str, int]:
        there = {name: workers for name, _, workers in hosts}
        left = int(min(sum(there.values()), most)) // max(1, size) * max(1, size)
        found = dict[str, int]()
        for name, workers in there.items():
            found[name] = min(workers, left)
            left -= found[name]
        return found

    patch.setattr(roster, "whole_replicas", whole)


def ranks_follow_the_hosts_alone(patch: pytest.MonkeyPatch) -> None:
    """A replica on two hosts has another one's ranks between its own."""
    original = Roster.in_replicas

    def chosen(self: Roster, workers: Iterable[Worker], most: float = math.inf) -> list[Worker]:
        found = original(self, workers, most)
        return sorted(found, key=lambda worker: (self.age_order(worker.host), worker.slot))

    patch.setattr(Roster, "in_replicas", chosen)


def waiting_halves_are_dismissed(patch: pytest.MonkeyPatch) -> None:
    """A worker whose replica is not whole leaves, and is started again, as long as the other one fails."""
    patch.setattr(RoundControl, "_without_replica", lambda self, _size: set(self.roster.waiting))


def a_half_takes_the_place_of_a_whole_replica(patch: pytest.MonkeyPatch) -> None:
    """Workers whose replica is not whole count where there are as many as the run may use: it waits for them alone."""
    patch.setattr(scanning, "_check_replicas", lambda *_: None)
    patch.setattr(Roster, "occupied", property(lambda self: len(self.placed)))


RESTART_MUTANTS: list[Patch] = [
    old_processes_are_not_stopped,
    old_processes_are_not_waited_for,
    an_ended_script_completes_the_run,
    a_saved_checkpoint_is_not_waited_for,
    a_save_is_not_heard_of,
    a_resize_is_a_failure,
    a_resize_stops_scripts_that_are_done,
    a_failed_size_is_tried_until_the_run_ends,
    only_the_newest_checkpoint_is_kept,
    a_checkpoint_is_whole_without_one_rank,
    a_lost_hosts_shards_are_still_there,
    a_host_is_let_go_with_what_it_alone_holds,
    a_round_has_a_part_of_a_replica,
    a_replica_lies_on_any_two_hosts,
    ranks_follow_the_hosts_alone,
    waiting_halves_are_dismissed,
    a_half_takes_the_place_of_a_whole_replica,
]
