"""A lock in etcd: a key that lives as long as the lease of the process that has put it there.

As in "Locks" of etcd's own clients: the key is made in a transaction that wants it to be absent, and every write by its
holder wants it to be the one that the holder has made. So a holder that was stopped for longer than its lease writes
nothing any more, whatever it believes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from edriver.driver.journal.etcd_client import EtcdClient, EtcdError, EtcdUnreachableError

LEASE: Final = 5.0
"""Seconds after which etcd gives the lock of a process that is silent to another. A driver that is stopped for longer
loses its run to a standby, which costs nothing."""

KEEP_ALIVE_PERIOD: Final = LEASE / 5
"""Seconds between two renewals."""


class LockLostError(Exception):
    """The lock is another process's, or may be. The message says why."""


class EtcdLock:
    """A lock, which this process has or has not.

    Args:
        client: calls etcd.
        key: the lock.
        holder: what stands in it, for others to read.
        clock: seconds, monotonic.
    """

    def __init__(
        self, client: EtcdClient, key: bytes, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._key = key
        self._holder = holder
        self._clock = clock
        self._lease = 0
        self._revision = 0
        self._released = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="etcd-lock", daemon=True)
        self._on_lost: Callable[[LockLostError], None] = lambda _: None
        self._lost: LockLostError | None = None
        self._changing = threading.Lock()

    @property
    def holder(self) -> str:
        """What its holder has written there; empty: none has it.

        Raises:
            EtcdError: see EtcdClient.
        """
        found = self._client.range(self._key)
        return str(found[0].value.decode(errors="replace")) if found else ""

    def acquire(self) -> bool:
        """Take it, if no other process has it; returns whether it was taken. It is kept until `release`.

        Raises:
            EtcdError: see EtcdClient.
        """
        rpc = self._client.messages
        grant = rpc.LeaseGrantRequest(TTL=int(LEASE))
        granted = self._client.call(
            lambda rpc, channel, timeout: rpc.LeaseStub(channel).LeaseGrant(grant, timeout=timeout)
        )
        free = rpc.Compare(key=self._key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=0)
        take = rpc.RequestOp(request_put=rpc.PutRequest(key=self._key, value=self._holder.encode(), lease=granted.ID))
        request = rpc.TxnRequest(compare=[free], success=[take])
        taken = self._client.call(lambda rpc, channel, timeout: rpc.KVStub(channel).Txn(request, timeout=timeout))
        if not taken.succeeded:
            self._revoke(granted.ID)
            return False
        self._lease, self._revision = granted.ID, taken.header.revision
        self._keeper.start()
        return True

    def write(self, operations: Sequence[Any]) -> None:
        """Have etcd do all of this, or nothing of it, while this process has the lock.

        Raises:
            LockLostError: it has it no more, and nothing was done.
            EtcdError: see EtcdClient.
        """
        rpc = self._client.messages
        ours = rpc.Compare(
            key=self._key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=self._revision
        )
        request = rpc.TxnRequest(compare=[ours], success=operations)
        done = self._client.call(lambda rpc, channel, timeout: rpc.KVStub(channel).Txn(request, timeout=timeout))
        if not done.succeeded:
            raise self._gone()

    def on_lost(self, leave: Callable[[LockLostError], None]) -> None:
        """Have this called once, from any thread, when the lock is lost."""
        with self._changing:
            self._on_lost = leave
            lost = self._lost
        if lost is not None:
            leave(lost)

    def release(self) -> None:
        """Let it go."""
        self._released.set()
        if self._keeper.is_alive():
            self._keeper.join()
        lease, self._lease = self._lease, 0
        if lease:
            self._revoke(lease)

    def _revoke(self, lease: int) -> None:
        request = self._client.messages.LeaseRevokeRequest(ID=lease)
        with contextlib.suppress(EtcdError):  # it expires by itself
            self._client.call(
                lambda rpc, channel, timeout: rpc.LeaseStub(channel).LeaseRevoke(request, timeout=timeout)
            )

    def _keep(self) -> None:
        """Renew the lease until it is released or lost."""
        renewed = self._clock()
        lost = None
        while lost is None and not self._released.wait(KEEP_ALIVE_PERIOD):
            began = self._clock()
            try:
                if self._renew():
                    renewed = began
                else:
                    lost = self._gone()
            except EtcdUnreachableError as error:
                if self._clock() - renewed > LEASE:
                    lost = LockLostError(f"etcd was not reached for {LEASE:g} s ({error})")
            except EtcdError as error:
                lost = LockLostError(f"etcd refuses to renew its lease: {error}")
        if lost is not None:
            with self._changing:
                self._lost = lost
                leave = self._on_lost
            leave(lost)

    def _renew(self) -> bool:
        request = self._client.messages.LeaseKeepAliveRequest(ID=self._lease)
        answer = self._client.call(
            lambda rpc, channel, timeout: next(rpc.LeaseStub(channel).LeaseKeepAlive(iter([request]), timeout=timeout))
        )
        return bool(answer.TTL > 0)

    def _gone(self) -> LockLostError:
        try:
            other = self.holder
        except EtcdError:
            other = ""
        now = f"{other} has it now" if other else "no other has it yet"
        return LockLostError(f"its lease in etcd has expired, after a silence of more than {LEASE:g} s; {now}")
