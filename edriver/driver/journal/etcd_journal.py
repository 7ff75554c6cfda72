"""The journal of a run in etcd, so that a driver on another machine can take the run over on its own.

All keys lie under `/edriver/NAME/`. Every write is a transaction that holds only while this process has the lock.

The write of a driver that no longer has the lock fails, or its lease cannot be renewed; then it ends as if it had been
killed, and leaves its agents alone, which are another driver's by then. A driver that does not reach etcd for its lease
does the same, for it cannot know. Events that wait are written in one transaction, up to RECORDS_AT_ONCE, beside the
event loop.
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import tenacity

from edriver.common.release import VERSION
from edriver.driver.journal.codec import Json
from edriver.driver.journal.entries import JournalEntry, event_from_bytes, event_to_bytes
from edriver.driver.journal.etcd_client import EtcdClient, EtcdError, EtcdUnreachableError
from edriver.driver.journal.etcd_lock import LEASE, EtcdLock
from edriver.driver.journal.formats import FORMAT
from edriver.driver.journal.journal import AgentLink, Head, Journal, JournalError, JournalLostError, JournalRecord

ROOT: Final = "/edriver"

RECORDS_AT_ONCE: Final = 60
"""Each takes two of the 128 operations that etcd allows a transaction (--max-txn-ops)."""

PART_BYTES: Final = 512 * 1024
"""Bytes of a snapshot that lie in one key: a request may have 1.5 MiB (--max-request-bytes)."""

ORDERS_AT_ONCE: Final = 10_000
"""Orders that lie in one key, of some 30 bytes each."""

PAGE: Final = 500
"""Entries that are read at once."""

RETRY_PAUSE: Final = 0.1
"""Seconds before a write that no member has answered is tried again."""

MAX_OUTAGE: Final = 2 * LEASE
"""Seconds for which a write is tried again."""

POLL_PERIOD: Final = 0.25
"""Seconds between two looks at the lock of another driver."""

_TIMES: Final = struct.Struct("!ddI")
"""What an entry begins with: its times, and the size of the event, which the progress follows."""


T = TypeVar("T")


class EtcdJournal(Journal):
    """The journal of the run with a name.

    Args:
        client: calls etcd.
        run_name: the run's name.
        holder: names this process to others that want the lock.
        clock: seconds, monotonic.
        sleep: waits for so many seconds.
    """

    records_at_once = RECORDS_AT_ONCE
    remote = True

    def __init__(
        self,
        client: EtcdClient,
        run_name: str,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.name = f"{ROOT}/{run_name} in etcd ({client.address})"
        self._client = client
        self._rpc = client.messages
        self._prefix = f"{ROOT}/{run_name}/".encode()
        self._lock = EtcdLock(client, self._prefix + b"lock", holder, clock)
        self._sleep = sleep
        self._next = 1
        self._next_orders = 1
        self._generation = 0

    # ---- who has it ------------------------------------------------------------------------------------------

    @property
    def holder(self) -> str:
        """The driver that has it; empty: none has.

        Raises:
            JournalError: etcd cannot be reached.
        """
        return self._read(lambda: self._lock.holder)

    def acquire(self) -> bool:
        """Take it, if no other driver has it; returns whether it was taken.

        Raises:
            JournalError: etcd cannot be reached.
        """
        return self._read(self._lock.acquire)

    def wait(self) -> bool:
        """Wait until the driver that has it is gone, and take it.

        Returns:
            whether it was taken; no: the run has ended.
        """
        seen = False
        while True:
            with contextlib.suppress(EtcdError):  # it is waited for, too
                held, has_run = bool(self._lock.holder), self._has_run()
                if not held and seen and not has_run:
                    return False
                if not held and self._lock.acquire():
                    return True
                seen = seen or has_run
            self._sleep(POLL_PERIOD)

    @property
    def holds_run(self) -> bool:
        """Whether there is a run in it.

        Raises:
            JournalError: etcd cannot be reached.
        """
        return self._read(self._has_run)

    def _has_run(self) -> bool:
        return bool(self._client.range(self._prefix + b"head"))

    def on_lost(self, leave: Callable[[JournalLostError], None]) -> None:
        self._lock.on_lost(leave)

    # ---- what is written -------------------------------------------------------------------------------------

    def begin(self, head: Head) -> EtcdJournal:
        """Begin the journal of a run, and return it; what is left of another one of its name goes.

        Raises:
            JournalError: that cannot be done.
        """
        names = (b"entries/", b"links/", b"orders/", b"snapshot/")
        self._write([*(self._delete(name, _end(self._prefix + name)) for name in names), *self._head(head)])
        return self

    def update(self, head: Head) -> None:
        self._write(self._head(head))

    def append(self, records: Sequence[JournalRecord]) -> None:
        operations: list[Any] = []
        sizes: list[int] = []
        for record in records:
            if record.entry is not None:
                clock, wall_clock, event, progress = record.entry
                data = event_to_bytes(event)
                value = _TIMES.pack(clock, wall_clock, len(data)) + data + progress
                operations.append(self._put(_entry_key(self._next + len(sizes)), value))
                sizes.append(len(value))
        links = {record.link[0]: record.link for record in records if record.link is not None}
        operations += [self._put(f"links/{link[0]}".encode(), json.dumps(link).encode()) for link in links.values()]
        self._write(operations)
        self._next += len(sizes)
        self._note_written(sizes)

    def append_orders(self, orders: Sequence[str]) -> None:
        for start in range(0, len(orders), ORDERS_AT_ONCE):
            some = json.dumps(orders[start : start + ORDERS_AT_ONCE]).encode()
            self._write([self._put(_orders_key(self._next_orders), some)])
            self._next_orders += 1

    def write_snapshot(self, clock: float, wall_clock: float, state: bytes) -> None:
        head = [] if self.format == FORMAT else self._head(self.head)
        generation = self._generation + 1
        parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
        for n, part in enumerate(parts):
            self._write([self._put(_part_key(generation, n), part)])
        about = {"generation": generation, "clock": clock, "wall_clock": wall_clock, "after": self._next}
        self._write(
            [
                self._put(b"snapshot/latest", json.dumps(about).encode()),
                self._delete(_part_key(0, 0), self._prefix + _part_key(generation, 0)),
                self._delete(b"entries/", self._prefix + _entry_key(self._next)),
                self._delete(b"orders/", _end(self._prefix + b"orders/")),
                *head,
            ]
        )
        self.format = FORMAT
        self._generation, self._snapshot_size, self._bytes_since_snapshot = generation, len(state), 0

    def discard(self) -> None:
        with contextlib.suppress(JournalError):  # another driver takes over then, and ends the run as this one did
            self._write([self._delete(b"", _end(self._prefix))])
        self.close()

    def close(self) -> None:
        self._lock.release()
        self._client.close()

    # ---- what is read ----------------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        found = self._read(lambda: self._client.range(self._prefix + b"head"))
        with self._reading("its head"):
            about = json.loads(found[0].value)
            self._check_format(int(about["format"]), str(about["version"]))
            return Head.from_json(about["head"], self.format)

    def snapshot(self) -> tuple[float, float, Json] | None:
        found = self._read(lambda: self._client.range(self._prefix + b"snapshot/latest"))
        if not found:
            return None
        with self._reading("its snapshot"):
            about = json.loads(found[0].value)
            self._generation, self._next = int(about["generation"]), int(about["after"])
            clock, wall_clock = float(about["clock"]), float(about["wall_clock"])
        start, end = _part_key(self._generation, 0), _part_key(self._generation + 1, 0)
        state = b"".join(value for _, value in self._pages(start, self._prefix + end, limit=1))
        with self._reading("its snapshot"):
            return clock, wall_clock, self._state(state)

    def entries(self) -> Iterator[JournalEntry]:
        for key, value in self._pages(b"entries/", _end(self._prefix + b"entries/"), PAGE):
            try:
                clock, wall_clock, size = _TIMES.unpack_from(value)
                event, progress = value[_TIMES.size : _TIMES.size + size], value[_TIMES.size + size :]
                yield JournalEntry(clock, wall_clock, event_from_bytes(event, self.format), progress)
            except (ValueError, struct.error) as error:
                raise self.damaged(f"{key.decode(errors='replace')}: {error}") from None
            self._next = int(key.rpartition(b"/")[2]) + 1

    def orders(self) -> Iterator[str]:
        for key, value in self._pages(b"orders/", _end(self._prefix + b"orders/"), PAGE):
            with self._reading("its orders"):
                orders = json.loads(value)
                if not (isinstance(orders, list) and all(isinstance(order, str) for order in orders)):
                    raise ValueError("they are not a list of strings")
                self._next_orders = int(key.rpartition(b"/")[2]) + 1
            yield from orders

    def links(self) -> Iterator[AgentLink]:
        for _, value in self._pages(b"links/", _end(self._prefix + b"links/"), PAGE):
            with self._reading("its links"):
                agent_id, received, acknowledged = map(int, json.loads(value))
            yield agent_id, received, acknowledged

    # ---- within ----------------------------------------------------------------------------------------------

    def _head(self, head: Head) -> list[Any]:
        about = {"format": FORMAT, "version": VERSION, "head": head.to_json()}
        return [self._put(b"head", json.dumps(about).encode())]

    def _put(self, name: bytes, value: bytes) -> Any:
        return self._rpc.RequestOp(request_put=self._rpc.PutRequest(key=self._prefix + name, value=value))

    def _delete(self, name: bytes, end: bytes) -> Any:
        request = self._rpc.DeleteRangeRequest(key=self._prefix + name, range_end=end)
        return self._rpc.RequestOp(request_delete_range=request)

    def _write(self, operations: Sequence[Any]) -> None:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(EtcdUnreachableError),
            wait=tenacity.wait_fixed(RETRY_PAUSE),
            stop=tenacity.stop_after_delay(MAX_OUTAGE),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            attempts(self._lock.write, operations)
        except EtcdUnreachableError as error:
            raise JournalLostError(f"etcd was not reached for {MAX_OUTAGE:g} s ({error})") from None
        except EtcdError as error:
            raise JournalError(f"the journal {self.name} cannot be written: {error}") from None

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except EtcdError as error:
            raise JournalError(f"the journal {self.name} cannot be read: {error}") from None

    def _range(self, start: bytes, end: bytes, limit: int) -> Sequence[Any]:
        return self._read(lambda: self._client.range(start, end, limit))

    def _pages(self, name: bytes, end: bytes, limit: int) -> Iterator[tuple[bytes, bytes]]:
        start = self._prefix + name
        while found := self._range(start, end, limit):
            yield from ((kv.key, kv.value) for kv in found)
            start = found[-1].key + b"\0"


def _entry_key(n: int) -> bytes:
    return b"entries/%020d" % n  # in the order of the numbers


def _orders_key(n: int) -> bytes:
    return b"orders/%020d" % n


def _part_key(generation: int, n: int) -> bytes:
    return b"snapshot/%010d/%06d" % (generation, n)


def _end(prefix: bytes) -> bytes:
    """The key after all that begin with the prefix, which ends in '/'."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
