"""Which checkpoints in memory are whole, what hosts keep and copy, and from which one a round starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from edriver.driver.core.memory_checkpoints import MemoryCheckpoints, MissedSave
from edriver.model.actions import KeepCheckpoints
from edriver.model.events import CheckpointsHeld
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, Shard
from edriver.model.records import HostRecord

HOSTS = ["a", "b", "c"]
RANKS = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}


def checkpoint(step: int, n: int = 1) -> CheckpointId:
    return CheckpointId(RoundId(1, n), step, 6)


def shard(step: int, rank: int, *, copy: bool = False, n: int = 1, layout: bytes = b"l") -> Shard:
    return Shard(checkpoint(step, n), rank, layout, 100 + rank, copy)


class Hosts:
    """Three hosts of two ranks, which do as they are told when a test says so."""

    def __init__(self, copies: int = 1) -> None:
        self.core = MemoryCheckpoints(copies)
        self.held: dict[str, set[Shard]] = {host: set() for host in HOSTS}
        self.orders: dict[str, KeepCheckpoints] = {}
        self.round = RoundId(1, 1)
        self.records = {host: HostRecord(host, slots=2) for host in HOSTS}
        self.revision = 0
        for host in HOSTS:
            self.report(host)

    def report(self, host: str) -> list[KeepCheckpoints]:
        shards = tuple(sorted(self.held[host], key=str))
        self.core.note(CheckpointsHeld(host, 1, f"{host}:1", shards))
        return self.take()

    def take(self) -> list[KeepCheckpoints]:
        found = self.core.orders(self.records, self.revision, self.round)
        orders = [order for order in found if isinstance(order, KeepCheckpoints)]
        self.orders |= {order.host: order for order in orders}
        return orders

    def save(self, step: int, hosts: Iterable[str] = HOSTS, n: int = 1) -> None:
        for host in hosts:
            self.held[host] |= {shard(step, rank, n=n) for rank in RANKS[host]}
            self.report(host)

    def copy(self, host: str) -> None:
        """The host fetches all that it was ordered to."""
        for copy in self.orders[host].copies:
            source = {dataclasses.replace(shard, copy=False) for shard in self.held[copy.address[0]]}
            assert copy.shard in source, "the source has it"
            self.held[host].add(dataclasses.replace(copy.shard, copy=True))
        self.report(host)

    def start(self, *, without: str = "") -> CheckpointId | None:
        found = self.core.start_from(lambda host: host != without)
        return None if found is None else found.checkpoint


def test_a_checkpoint_is_whole_once_all_ranks_have_their_shards() -> None:
    hosts = Hosts()
    hosts.save(10, ["a", "b"])
    assert hosts.start() is None
    assert not hosts.orders
    hosts.save(10, ["c"])
    assert hosts.start() == checkpoint(10)
    assert {order.newest for order in hosts.orders.values()} == {checkpoint(10)}


def test_shards_with_another_layout_do_not_belong_to_it() -> None:
    hosts = Hosts()
    hosts.save(10, ["a", "b"])
    hosts.held["c"] = {shard(10, rank, layout=b"other") for rank in RANKS["c"]}
    hosts.report("c")
    assert hosts.start() is None


def test_those_of_earlier_rounds_do_not_count_where_only_later_ones_may() -> None:
    """Of a script's `run` call before this one, the state may be another."""
    hosts = Hosts()
    hosts.save(10, n=1)
    assert hosts.core.within_reach(bool, RoundId(1, 1)) is None
    hosts.save(5, n=2)
    found = hosts.core.within_reach(bool, RoundId(1, 1))
    assert found is not None
    assert found.checkpoint == checkpoint(5, n=2)
    assert hosts.core.restored is None, "it was only asked for"


def test_copies_go_round_the_ring() -> None:
    hosts = Hosts()
    hosts.save(10)
    fetched = {host: [(c.shard.rank, c.address) for c in order.copies] for host, order in hosts.orders.items()}
    assert fetched == {
        "b": [(0, "a:1"), (1, "a:1")],
        "c": [(2, "b:1"), (3, "b:1")],
        "a": [(4, "c:1"), (5, "c:1")],
    }


def test_the_loss_of_any_host_loses_nothing_that_was_copied() -> None:
    for lost in HOSTS:
        hosts = Hosts()
        hosts.save(10)
        for host in HOSTS:
            hosts.copy(host)
        hosts.save(20)  # whole, and not copied
        hosts.core.lose_host(lost)
        hosts.take()
        assert hosts.start() == checkpoint(10)


def test_the_loss_of_a_worker_alone_costs_less() -> None:
    hosts = Hosts()
    hosts.save(10)
    for host in HOSTS:
        hosts.copy(host)
    hosts.save(20)
    assert hosts.start() == checkpoint(20)


def test_what_is_copied_is_kept_until_a_newer_one_is() -> None:
    hosts = Hosts()
    hosts.save(10)
    for host in HOSTS:
        hosts.copy(host)
    hosts.save(20)
    assert {order.keep for order in hosts.orders.values()} == {(checkpoint(10), checkpoint(20))}
    hosts.save(30)  # the copies of 20 are on their way: they are not begun anew for 30
    assert {order.keep for order in hosts.orders.values()} == {(checkpoint(10), checkpoint(20), checkpoint(30))}
    assert {c.shard.checkpoint for order in hosts.orders.values() for c in order.copies} == {checkpoint(20)}
    for host in HOSTS:
        hosts.copy(host)
    assert {order.keep for order in hosts.orders.values()} == {(checkpoint(20), checkpoint(30))}
    assert {c.shard.checkpoint for order in hosts.orders.values() for c in order.copies} == {checkpoint(30)}


def test_each_arriving_copy_alone_is_no_reason_for_another_order() -> None:
    hosts = Hosts()
    hosts.save(10)
    first = hosts.orders["b"].copies[0]
    hosts.held["b"].add(dataclasses.replace(first.shard, copy=True))
    assert hosts.report("b") == []


def test_what_a_host_has_lost_meanwhile_is_copied_from_another_one() -> None:
    """Its checkpoint server has been started anew."""
    hosts = Hosts()
    hosts.save(10)
    hosts.copy("b")
    hosts.held["a"] = set()
    hosts.report("a")
    fetched = {(host, c.shard.rank, c.address) for host, order in hosts.orders.items() for c in order.copies}
    assert {each for each in fetched if each[1] in RANKS["a"]} == {("c", 0, "b:1"), ("c", 1, "b:1")}


def test_what_has_another_address_meanwhile_is_copied_from_there() -> None:
    hosts = Hosts()
    hosts.save(10)
    hosts.core.note(CheckpointsHeld("a", 1, "a:2", tuple(sorted(hosts.held["a"], key=str))))
    hosts.take()
    assert {c.address for c in hosts.orders["b"].copies} == {"a:2"}


def test_one_host_copies_nothing() -> None:
    core = MemoryCheckpoints(1)
    shards = tuple(Shard(CheckpointId(RoundId(1, 1), 5, 2), rank, b"l", 10) for rank in range(2))
    core.note(CheckpointsHeld("a", 1, "unix:a", shards))
    (order,) = core.orders({"a": HostRecord("a", slots=2)}, 0, RoundId(1, 1))
    assert isinstance(order, KeepCheckpoints)
    assert not order.copies
    assert order.keep == (CheckpointId(RoundId(1, 1), 5, 2),)
    assert core.copied == core.newest


def test_what_a_lost_host_had_is_copied_further_from_its_copy() -> None:
    hosts = Hosts()
    hosts.save(10)
    for host in HOSTS:
        hosts.copy(host)
    hosts.core.lose_host("a")
    hosts.take()
    fetched = {(host, c.shard.rank, c.address) for host, order in hosts.orders.items() for c in order.copies}
    assert {each for each in fetched if each[1] in RANKS["a"]} == {("c", 0, "b:1"), ("c", 1, "b:1")}
    for host in ("b", "c"):
        hosts.copy(host)
    hosts.core.lose_host("b")
    hosts.take()
    assert hosts.start() == checkpoint(10)


def test_a_later_rounds_checkpoint_is_newer_whatever_its_step() -> None:
    hosts = Hosts()
    hosts.save(100)
    hosts.round = RoundId(1, 2)
    hosts.save(50, n=2)
    assert hosts.start() == checkpoint(50, 2)


def test_what_a_round_has_started_from_stays_until_it_has_a_newer_one() -> None:
    hosts = Hosts()
    hosts.save(10)
    for host in HOSTS:
        hosts.copy(host)
    assert hosts.start() == checkpoint(10)
    hosts.round = RoundId(1, 2)
    hosts.save(20)  # of the round that has ended: its last worker committed late, and the new round has started already
    for host in HOSTS:
        hosts.copy(host)
    assert checkpoint(10) in hosts.orders["a"].keep
    hosts.save(15, n=2)
    for host in HOSTS:
        hosts.copy(host)
    assert {order.keep for order in hosts.orders.values()} == {(checkpoint(15, 2),)}


def test_a_silent_hosts_shards_are_read_elsewhere() -> None:
    hosts = Hosts()
    hosts.save(10)
    for host in HOSTS:
        hosts.copy(host)
    found = hosts.core.start_from(lambda host: host != "b")
    assert found is not None
    assert [found.addresses[holder] for holder in found.holders] == ["a:1", "a:1", "c:1", "c:1", "c:1", "c:1"]


def test_a_host_that_is_to_be_left_stays_until_another_has_what_it_holds() -> None:
    hosts = Hosts()
    hosts.save(10)
    for host in HOSTS:
        hosts.copy(host)
    hosts.save(20)
    hosts.records["a"].drain(None)
    hosts.revision += 1
    hosts.take()
    assert not hosts.orders["a"].copies
    assert [(c.shard.rank, c.address) for c in hosts.orders["b"].copies if c.shard.rank > 3] == [(4, "c:1"), (5, "c:1")]
    assert hosts.core.is_needed("a")
    assert hosts.core.is_needed("b")
    hosts.copy("b")
    assert not hosts.core.is_needed("a")
    assert hosts.core.is_needed("b")
    hosts.core.lose_host("a")
    hosts.take()
    assert hosts.start() == checkpoint(20)


def test_a_server_that_has_ended_takes_its_shards_along() -> None:
    hosts = Hosts()
    hosts.save(10)
    hosts.core.server_ended("b")
    assert hosts.start() is None
    assert not hosts.take()


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_snapshot_goes_on_as_if_nothing_had_happened(copies: int) -> None:
    hosts = Hosts(copies)
    hosts.save(10)
    hosts.copy("b") if copies else None
    hosts.save(20, ["a"])
    again = MemoryCheckpoints(copies)
    for name in MemoryCheckpoints.STATE:
        setattr(again, name, getattr(hosts.core, name))
    again.derive()
    hosts.revision += 1
    assert again.orders(hosts.records, hosts.revision, hosts.round) == hosts.take() == []
    assert again.start_from(bool) == hosts.core.start_from(bool)


def test_a_rank_that_saves_other_steps_is_named() -> None:
    hosts = Hosts()
    hosts.save(10)
    hosts.save(20, ["a", "b"])
    assert hosts.core.missed is None, "host c may be slow"
    for step in (20, 30):
        hosts.save(step, ["a", "b"])
        hosts.held["c"] |= {shard(step, 4), shard(step + 5, 5)}
        hosts.report("c")
    assert hosts.core.missed == MissedSave("c", 5, 20, 25)
    hosts.core.derive()
    assert hosts.core.missed == MissedSave("c", 5, 20, 25)
    hosts.save(40)
    assert hosts.core.missed is None


def test_one_save_that_a_rank_has_missed_is_no_news() -> None:
    hosts = Hosts()
    hosts.save(10, ["a", "b"])
    hosts.save(20, ["c"])
    hosts.save(30, ["c"])
    assert hosts.core.missed is None


def test_what_was_lost_with_a_server_was_not_missed() -> None:
    hosts = Hosts(copies=0)
    for step in (10, 20):
        hosts.save(step)
    hosts.held["c"] = {shard(30, rank) for rank in RANKS["c"]}
    hosts.report("c")
    assert hosts.start() is None
    assert hosts.core.missed is None


@pytest.mark.parametrize("copies", [1, 2])
def test_copies_go_to_hosts_that_are_far_away(copies: int) -> None:
    names = [f"h{n}" for n in range(8)]
    core = MemoryCheckpoints(copies)
    records = {host: HostRecord(host, slots=1) for host in names}
    for rank, host in enumerate(names):
        core.note(CheckpointsHeld(host, 1, f"{host}:1", (Shard(CheckpointId(RoundId(1, 1), 5, 8), rank, b"l", 9),)))
    orders = [each for each in core.orders(records, 0, RoundId(1, 1)) if isinstance(each, KeepCheckpoints)]
    fetched = {(copy.shard.rank, order.host) for order in orders for copy in order.copies}
    assert fetched == {(rank, names[(rank + 4 + more) % 8]) for rank in range(8) for more in range(copies)}
