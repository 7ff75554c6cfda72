"""Which checkpoint in memory hosts write to disk, which of them does what, and what follows from a loss."""

from __future__ import annotations

from dataclasses import replace

from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.model.actions import KeepCheckpoints
from edriver.model.events import CheckpointsHeld
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, DiskTarget, DiskWrite, Shard
from edriver.model.records import HostRecord

RANKS = {"a": (0, 1), "b": (2, 3)}
TARGET = DiskTarget("/shared/checkpoints", 3, "/bin/python")


def checkpoint(step: int) -> CheckpointId:
    return CheckpointId(RoundId(1, 1), step, 4)


class Hosts:
    """Two hosts of two ranks each."""

    def __init__(self, copies: int = 0) -> None:
        self.core = MemoryCheckpoints(copies)
        self.held: dict[str, set[Shard]] = {"a": set(), "b": set()}
        self.disk: dict[str, DiskReport] = {}
        self.orders: dict[str, KeepCheckpoints] = {}
        for host in self.held:
            self.report(host)

    def report(self, host: str) -> None:
        shards = tuple(sorted(self.held[host], key=str))
        self.core.note(CheckpointsHeld(host, 1, f"{host}:1", shards, disk=self.disk.get(host)))
        self.take()

    def take(self) -> None:
        records = {host: HostRecord(host, slots=2) for host in self.held}
        for order in self.core.orders(records, 0, RoundId(1, 1)):
            assert isinstance(order, KeepCheckpoints)
            self.orders[order.host] = order

    def save(self, step: int, *, due: bool = False, target: DiskTarget | None = TARGET) -> None:
        for host, ranks in RANKS.items():
            for rank in ranks:
                disk = replace(target, due=due) if target is not None and rank == 0 else None
                self.held[host].add(Shard(checkpoint(step), rank, b"l", 100, disk=disk))
            self.report(host)

    def say(self, host: str, **what: object) -> None:
        """A host says how far it is with what it was ordered to write."""
        write = self.order(host)
        assert write is not None
        before = self.disk.get(host)
        report = before if before is not None and before.number == write.number else DiskReport(write.number)
        self.disk[host] = replace(report, **what)  # type: ignore[arg-type]
        self.report(host)

    def write(self) -> None:
        """All that hosts do until it is on disk."""
        self.say("a", name="checkpoint-000001", written=True)
        self.say("b", written=True)
        self.say("a", sealed=True)

    def order(self, host: str) -> DiskWrite | None:
        return self.orders[host].disk

    @property
    def on_disk(self) -> int | None:
        found = self.core.disk.on_disk
        return None if found is None else found[0].step


def test_only_a_checkpoint_that_is_due_is_written() -> None:
    hosts = Hosts()
    hosts.save(10)
    assert hosts.order("a") is None
    hosts.save(20, due=True)
    write = hosts.order("a")
    assert write is not None
    assert (write.checkpoint.step, write.ranks, write.name, write.seal) == (20, (0, 1), "", False)


def test_the_host_of_rank_0_begins_and_completes_it_and_the_others_write_their_parts_between() -> None:
    hosts = Hosts()
    hosts.save(10, due=True)
    assert hosts.order("b") is None, "the folder is not there yet"
    hosts.say("a", name="checkpoint-000007")
    write = hosts.order("b")
    assert write is not None
    assert (write.name, write.ranks, write.seal) == ("checkpoint-000007", (2, 3), False)
    hosts.say("a", written=True)
    assert not hosts.order("a").seal  # type: ignore[union-attr]  # a part is missing
    hosts.say("b", written=True)
    assert hosts.order("a").seal  # type: ignore[union-attr]
    assert hosts.on_disk is None
    hosts.say("a", sealed=True)
    assert hosts.on_disk == 10
    assert hosts.order("a") is None
    assert hosts.order("b") is None


def test_it_is_kept_in_memory_until_it_is_on_disk() -> None:
    hosts = Hosts()
    hosts.save(10, due=True)
    hosts.save(20)
    assert [each.step for each in hosts.orders["b"].keep] == [10, 20]
    hosts.write()
    assert [each.step for each in hosts.orders["b"].keep] == [20]


def test_one_is_written_at_a_time_and_the_newest_comes_next() -> None:
    hosts = Hosts()
    hosts.save(10, due=True)
    hosts.save(20, due=True)
    hosts.save(30)
    assert hosts.order("a").checkpoint.step == 10  # type: ignore[union-attr]
    hosts.write()
    assert hosts.order("a").checkpoint.step == 30  # type: ignore[union-attr]  # newer than the one that was due


def test_what_cannot_be_written_is_tried_again_when_the_next_is_due() -> None:
    hosts = Hosts()
    hosts.save(10, due=True)
    hosts.say("a", name="checkpoint-000001")
    hosts.say("b", trouble="No space left on device")
    assert hosts.order("a") is None
    assert hosts.core.disk_trouble() == "b: No space left on device"
    hosts.save(20)
    assert hosts.order("a") is None
    hosts.save(30, due=True)
    write = hosts.order("a")
    assert write is not None
    assert (write.number, write.checkpoint.step) == (2, 30)
    hosts.write()
    assert hosts.on_disk == 30


def test_what_a_host_says_of_another_attempt_does_not_count() -> None:
    hosts = Hosts()
    hosts.save(10, due=True)
    hosts.write()
    hosts.save(20, due=True)
    assert hosts.on_disk == 10
    assert hosts.order("a").seal is False  # type: ignore[union-attr]
    assert hosts.order("b") is None


def test_after_the_loss_of_a_host_another_attempt_begins_and_its_parts_come_from_their_copies() -> None:
    hosts = Hosts(copies=1)
    hosts.save(10, due=True)
    copies = hosts.orders["b"].copies
    assert copies[0].shard.disk == replace(TARGET, due=True), "a copy of rank 0's shard says where to write, too"
    hosts.held["b"] |= {replace(each.shard, copy=True) for each in copies}
    hosts.report("b")
    hosts.core.lose_host("a")
    del hosts.held["a"]
    hosts.take()
    write = hosts.order("b")
    assert write is not None
    assert (write.number, write.checkpoint.step, write.ranks, write.name) == (2, 10, (0, 1, 2, 3), "")


def test_a_checkpoint_that_belongs_nowhere_on_disk_stays_in_memory() -> None:
    hosts = Hosts()
    hosts.save(10, target=None)
    assert hosts.core.write_to_disk() is None


def test_the_newest_is_written_on_request_once() -> None:
    hosts = Hosts()
    hosts.save(10)
    for _ in range(2):
        assert hosts.core.write_to_disk() == (checkpoint(10), b"l")
        hosts.take()
        assert hosts.order("a").number == 1  # type: ignore[union-attr]
    hosts.write()
    assert hosts.core.write_to_disk() is None


def test_a_round_loads_from_disk_what_is_newer_than_all_that_is_whole_in_memory() -> None:
    hosts = Hosts()
    hosts.save(10)
    hosts.save(20, due=True)
    hosts.write()
    assert hosts.core.start_from(lambda _host: True).checkpoint.step == 20  # type: ignore[union-attr]
    hosts.held["b"] = {shard for shard in hosts.held["b"] if shard.checkpoint.step == 10}
    hosts.report("b")
    assert hosts.core.start_from(lambda _host: True) is None
