"""What a checkpoint server gives memory to, and what it keeps: cases, and any order of requests against the rules."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edriver.checkpoint_server.shards import PAGE, Grant, NotReservedError, ShardKey, ShardMemory, key_of
from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.memory_checkpoint import CheckpointId, Refusal, Shard

LAYOUT = b"l" * 16


def checkpoint(step: int, n: int = 1, size: int = 2) -> CheckpointId:
    return CheckpointId(RoundId(1, n), step, size)


def key(step: int, rank: int = 0, n: int = 1) -> ShardKey:
    return ShardKey(checkpoint(step, n), rank)


def shard(step: int, rank: int = 0, n: int = 1, length: int = PAGE, copy: bool = False) -> Shard:
    return Shard(checkpoint(step, n), rank, LAYOUT, length, copy)


@dataclass
class Host:
    """The accounting of a host with memory for some pages."""

    pages: int
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shards = ShardMemory(self.pages * PAGE, self.ended.__contains__)

    def reserve(self, step: int, process: int, n: int = 1, pages: int = 1, rank: int | None = None) -> Grant | Refusal:
        """Each process has the rank of its number, unless it is given."""
        return self.shards.reserve(key(step, process if rank is None else rank, n), pages * PAGE, process)

    def save(self, step: int, process: int = 0, n: int = 1, pages: int = 1, rank: int | None = None) -> int:
        """Reserve, write and commit; returns the buffer."""
        found = self.reserve(step, process, n, pages, rank)
        assert isinstance(found, Grant), found
        self.shards.commit(shard(step, process if rank is None else rank, n, pages * PAGE))
        return found.buffer

    def held(self) -> list[int]:
        """The steps of the shards."""
        return [each.checkpoint.step for each in self.shards.shards()]


def test_two_buffers_are_used_in_turn() -> None:
    host = Host(2)
    first = host.save(10)
    second = host.save(20)
    assert host.reserve(30, 0) is Refusal.BUSY
    host.shards.keep(checkpoint(20), [checkpoint(20)])
    assert host.save(30) == first
    host.shards.keep(checkpoint(30), [checkpoint(30)])
    assert host.save(40) == second
    assert host.shards.used == 2 * PAGE


def test_a_spare_buffer_is_there_before_a_process_asks_for_it() -> None:
    host = Host(9)
    assert host.shards.spare() is None, "nobody writes"
    first = host.save(10)
    spare = host.shards.spare()
    assert spare == Grant(first + 1, PAGE)
    assert host.shards.spare() is None, "one is enough"
    given = host.reserve(20, 0)
    assert isinstance(given, Grant)
    assert given.new, "it is still being written to"
    host.shards.warmed(spare.buffer)
    assert host.reserve(20, 0) == Grant(given.buffer), "its own goes first"
    host.shards.commit(shard(20, 0))
    assert host.reserve(30, 0) == Grant(spare.buffer)


def test_each_process_has_a_spare_buffer() -> None:
    host = Host(9)
    for process in (0, 1):
        host.save(10, process)
    assert [bool(host.shards.spare()) for _ in range(3)] == [True, True, False]
    host.ended |= {0, 1}
    host.save(20, 2, n=2)
    assert host.shards.spare() is None, "there are two"


def test_a_spare_buffer_takes_no_room_from_others() -> None:
    host = Host(2)
    host.save(10)
    spare = host.shards.spare()
    assert spare is not None
    found = host.reserve(10, 1)
    assert isinstance(found, Grant)
    assert found.released == (spare.buffer,)
    host.shards.warmed(spare.buffer)
    assert host.shards.spare() is None
    assert host.shards.used == 2 * PAGE


def test_before_the_first_order_nothing_is_forgotten() -> None:
    host = Host(3)
    for n in (1, 2, 3):
        host.save(10, n=n)
    assert host.reserve(10, 0, n=4) is Refusal.BUSY
    assert host.held() == [10, 10, 10]


def test_an_order_keeps_what_it_names_and_what_is_newer_of_the_latest_round() -> None:
    host = Host(9)
    for n, step in ((1, 10), (1, 20), (2, 30), (2, 40), (2, 50)):
        host.save(step, n=n)
    host.shards.keep(checkpoint(30, 2), [checkpoint(10), checkpoint(30, 2)])
    assert host.held() == [10, 30, 40, 50]
    host.save(60, n=3)
    assert host.held() == [10, 30, 60]


def test_the_newest_is_kept_though_it_is_not_named_again() -> None:
    host = Host(2)
    host.save(10)
    host.shards.keep(checkpoint(10), [])
    assert host.held() == [10]


def test_without_a_whole_one_the_latest_round_is_kept() -> None:
    host = Host(9)
    host.save(10)
    host.save(20, n=2)
    host.shards.keep(None, [])
    assert host.held() == [20]


@pytest.mark.parametrize(
    ("reserve", "refusal"),
    [
        pytest.param({"step": 20, "process": 0}, Refusal.COMMITTED, id="committed"),
        pytest.param({"step": 30, "process": 0, "pages": 5}, Refusal.TOO_LARGE, id="larger-than-all-memory"),
        pytest.param({"step": 30, "process": 0, "pages": 3}, Refusal.BUSY, id="memory-is-in-use"),
        pytest.param({"step": 10, "process": 0}, Refusal.OUTDATED, id="older-than-the-newest"),
        pytest.param({"step": 99, "process": 0, "n": 0}, Refusal.OUTDATED, id="of-a-round-before"),
        pytest.param({"step": 30, "process": 0, "rank": 1}, Refusal.BUSY, id="reserved-by-another"),
    ],
)
def test_what_gets_no_memory(reserve: dict[str, int], refusal: Refusal) -> None:
    host = Host(4)
    host.save(20)
    host.shards.keep(checkpoint(20), [checkpoint(20)])
    assert isinstance(host.reserve(30, 1), Grant)
    assert host.reserve(**reserve) is refusal
    assert host.held() == [20]


def test_a_buffer_goes_to_another_process_only_once_its_writer_has_ended() -> None:
    host = Host(1)
    host.save(10, 0)
    host.shards.keep(checkpoint(20), [checkpoint(20)])  # process 0 may sleep, and wake up, in the middle of a copy
    found = host.reserve(30, 1)
    assert found == Grant(2, PAGE, (1,))  # other memory: what process 0 has mapped is no part of it
    host.ended.add(1)
    assert host.reserve(30, 2) == Grant(2)


def test_a_buffer_that_is_reserved_is_not_given_away_while_its_process_lives() -> None:
    host = Host(1)
    assert host.reserve(10, 0) == Grant(1, PAGE)
    assert host.reserve(10, 1) is Refusal.BUSY
    host.ended.add(0)
    assert host.reserve(10, 1) == Grant(1)
    with pytest.raises(NotReservedError):
        host.shards.commit(shard(10, 0))
    assert host.held() == []


def test_what_was_not_committed_is_given_up_by_the_next_reservation() -> None:
    host = Host(1)
    assert host.reserve(10, 0) == Grant(1, PAGE)
    assert host.reserve(20, 0) == Grant(1)
    with pytest.raises(NotReservedError):
        host.shards.commit(shard(10))
    host.shards.commit(shard(20))
    assert host.held() == [20]


def test_a_shard_longer_than_its_memory_is_not_committed() -> None:
    host = Host(2)
    host.reserve(10, 0)
    with pytest.raises(NotReservedError, match=f"{PAGE + 1} bytes"):
        host.shards.commit(shard(10, length=PAGE + 1))
    assert host.held() == []


def test_what_is_read_is_not_written() -> None:
    host = Host(2)
    host.save(10, 0)
    host.ended.add(0)
    host.shards.opened(1, 5)
    host.shards.pin(1)
    host.shards.keep(checkpoint(20), [checkpoint(20)])
    assert host.reserve(30, 1) == Grant(2, PAGE)
    assert host.reserve(30, 2) is Refusal.BUSY
    host.shards.unpin(1)
    assert host.reserve(30, 2) is Refusal.BUSY  # process 5 reads still
    assert host.reserve(30, 5, rank=0) == Grant(1)  # it has finished reading: it reserves


def test_a_reader_that_has_ended_reads_no_more() -> None:
    host = Host(1)
    host.save(10, 0)
    host.shards.opened(1, 5)
    host.ended |= {0, 5}
    host.shards.keep(checkpoint(20), [checkpoint(20)])
    assert host.reserve(30, 1) == Grant(1)


def test_a_copy_is_no_shard_before_it_is_complete() -> None:
    host = Host(2)
    assert host.shards.receive(key(10, 1), PAGE) == Grant(1, PAGE)
    with pytest.raises(NotReservedError):
        host.shards.commit(shard(10, 1))  # no process writes it
    assert host.shards.find(key(10, 1), LAYOUT) is None
    host.shards.commit_copy(1, shard(10, 1))
    assert host.shards.shards() == [shard(10, 1, copy=True)]
    assert host.shards.receive(key(10, 1), PAGE) is Refusal.COMMITTED
    assert host.shards.find(key(10, 1), b"another") is None


def test_a_copy_that_was_given_up_leaves_its_memory_to_anyone() -> None:
    host = Host(1)
    assert host.shards.receive(key(10, 1), PAGE) == Grant(1, PAGE)
    host.shards.give_up(1)
    assert host.reserve(20, 0) == Grant(1)


def test_free_memory_of_processes_that_live_is_released_last() -> None:
    host = Host(4)
    host.save(10, 0)
    host.save(10, 1, pages=2)
    host.ended.add(1)
    host.shards.keep(checkpoint(20), [checkpoint(20)])
    assert host.reserve(30, 2, pages=3) == Grant(3, 3 * PAGE, (2,))
    assert host.shards.used == 4 * PAGE


@dataclass
class Model:
    """What would be in the memory, if processes wrote as they may: each buffer has the last who wrote into it.

    Attributes:
        written: what is in each buffer: bytes of a shard, as a number that no others have.
        writers: who was given it last; below 0: this server, for a copy.
        mine: what each process has reserved, and where.
        committed: the shards that were, with their buffer and bytes, until they may be forgotten.
        reads: the buffers that are pinned, and what was in them.
        opens: the same of those that processes have opened.
        copies: buffers into which copies are received.
        order: the last one.
        latest: the latest round that was seen.
    """

    host: Host
    written: dict[int, tuple[ShardKey, int]] = field(default_factory=dict)
    mine: dict[int, tuple[ShardKey, int]] = field(default_factory=dict)
    committed: dict[ShardKey, tuple[int, tuple[ShardKey, int]]] = field(default_factory=dict)
    reads: list[tuple[int, tuple[ShardKey, int]]] = field(default_factory=list)
    opens: dict[int, list[tuple[int, tuple[ShardKey, int]]]] = field(default_factory=dict)
    copies: list[tuple[int, ShardKey]] = field(default_factory=list)
    order: tuple[CheckpointId | None, frozenset[CheckpointId]] | None = None
    latest: RoundId = NO_ROUND
    writers: dict[int, int] = field(default_factory=dict)
    warming: set[int] = field(default_factory=set)
    serial: int = 0

    def give(self, grant: Grant, wanted: ShardKey, process: int) -> None:
        for buffer in grant.released:
            self.written.pop(buffer, None)
            del self.writers[buffer]
            self.warming.discard(buffer)
        assert grant.buffer not in self.warming, "zeros are being written into it"
        assert (grant.buffer in self.writers) == (not grant.new)
        before = self.writers.get(grant.buffer, process)
        assert before == process or before < 0 or before in self.host.ended, "two may write into it"
        assert grant.buffer not in [buffer for _, buffer in self.mine.values()], "it is being written"
        self.writers[grant.buffer] = process
        self.serial += 1
        self.written[grant.buffer] = (wanted, self.serial)

    def is_kept(self, wanted: ShardKey) -> bool:
        """By the words of the protocol."""
        if self.order is None:
            return True
        newest, kept = self.order
        found = wanted.checkpoint
        return (
            found in kept or found == newest or (found.round_id == self.latest and (newest is None or found > newest))
        )

    def check(self) -> None:
        shards = self.host.shards
        assert shards.used <= shards.limit
        held = {key_of(each) for each in shards.shards()}
        assert held <= self.committed.keys(), "what was never committed can be read"
        for wanted, (buffer, bytes_) in list(self.committed.items()):
            if wanted not in held:
                assert not self.is_kept(wanted), "it was to be kept"
                del self.committed[wanted]
                continue
            assert self.is_kept(wanted)
            assert shards.find(wanted, LAYOUT) == (buffer, PAGE)
            assert self.written[buffer] == bytes_, "a committed shard has changed"
        for buffer, bytes_ in (*self.reads, *(one for some in self.opens.values() for one in some)):
            assert self.written.get(buffer) == bytes_, "it changed while it was read"


ACTIONS = (
    ("reserve",) * 5
    + ("commit",) * 4
    + ("spare",) * 2
    + ("keep", "end", "open", "pin", "unpin", "receive", "received", "given up", "warmed")
)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), pages=st.integers(1, 6), steps=st.integers(1, 120))
def test_the_rules_hold_whatever_is_asked(seed: int, pages: int, steps: int) -> None:
    rng, host = random.Random(seed), Host(pages)
    model, live, started = Model(host), [0, 1, 2], 3
    for _ in range(steps):
        process, round_n = rng.choice(live), max(1, model.latest.n + rng.choice((0, 0, 0, 0, 1, -1)))
        wanted = key(rng.randrange(6), rng.randrange(2), round_n)
        match rng.choice(ACTIONS):
            case "reserve":
                model.opens.pop(process, None)
                model.mine.pop(process, None)
                model.latest = max(model.latest, wanted.checkpoint.round_id)
                found = host.shards.reserve(wanted, PAGE * rng.choice((0, 1)), process)
                if isinstance(found, Grant):
                    model.give(found, wanted, process)
                    model.mine[process] = (wanted, found.buffer)
            case "commit" if process in model.mine:
                wanted, buffer = model.mine.pop(process)
                host.shards.commit(Shard(*wanted, LAYOUT, PAGE))
                model.committed[wanted] = (buffer, model.written[buffer])
            case "spare":
                spare = host.shards.spare()
                if spare is not None:
                    assert spare.buffer not in model.writers
                    assert not spare.released
                    model.writers[spare.buffer] = -1
                    model.warming.add(spare.buffer)
            case "warmed" if model.warming:
                host.shards.warmed(model.warming.pop())
            case "keep":
                known = [each.checkpoint for each in model.committed]
                newest = rng.choice([None, wanted.checkpoint, *known])
                kept = frozenset(rng.sample(known, rng.randint(0, len(known))))
                model.order = newest, kept
                for each in (*kept, *([newest] if newest else [])):
                    model.latest = max(model.latest, each.round_id)
                host.shards.keep(newest, kept)
            case "end":
                live.remove(process)
                live.append(started)
                started += 1
                host.ended.add(process)
                model.mine.pop(process, None)
                model.opens.pop(process, None)
            case "open" if model.committed:
                buffer, bytes_ = rng.choice(list(model.committed.values()))
                host.shards.opened(buffer, process)
                model.opens.setdefault(process, []).append((buffer, bytes_))
            case "pin" if model.committed:
                buffer, bytes_ = rng.choice(list(model.committed.values()))
                host.shards.pin(buffer)
                model.reads.append((buffer, bytes_))
            case "unpin" if model.reads:
                host.shards.unpin(model.reads.pop(rng.randrange(len(model.reads)))[0])
            case "receive":
                model.latest = max(model.latest, wanted.checkpoint.round_id)
                found = host.shards.receive(wanted, PAGE)
                if isinstance(found, Grant):
                    model.give(found, wanted, -1 - found.buffer)
                    model.copies.append((found.buffer, wanted))
                    model.mine[-1 - found.buffer] = (wanted, found.buffer)
            case "received" if model.copies:
                buffer, wanted = model.copies.pop()
                del model.mine[-1 - buffer]
                host.shards.commit_copy(buffer, Shard(*wanted, LAYOUT, PAGE))
                model.committed[wanted] = (buffer, model.written[buffer])
            case "given up" if model.copies:
                buffer, wanted = model.copies.pop()
                del model.mine[-1 - buffer]
                host.shards.give_up(buffer)
        model.check()
