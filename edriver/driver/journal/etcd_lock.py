"""A lock in etcd: a key that lives as long as the lease of the process that has put it there.

As in "Locks" of etcd's own clients: the key is made in a transaction that wants it to be absent, and every write by its
holder wants it to be the one that the holder has made. So a holder that was stopped for longer than its lease writes
nothing any more, whatever it believes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from edriver.driver.journal.etcd_client import EtcdClient, EtcdError, EtcdUnreachableError
from edriver.driver.journal.journal import JournalLostError
from edriver.driver.journal.renewal import Renewal

LEASE: Final = 5.0
"""Seconds after which etcd gives the lock of a process that is silent to another. A driver that is stopped for longer
loses its run to a standby, which costs nothing."""

KEEP_ALIVE_PERIOD: Final = LEASE / 5
"""Seconds between two renewals."""


class EtcdLock:
    """A lock, which this process has or has not.

    Args:
        client: calls etcd.
        key: the lock.
        holder: what stands in it, for others to read.
        clock: seconds, monotonic.

    Attributes:
        on_lost: see Renewal.
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
        self._renewed = 0.0
        self._renewal = Renewal(self._renew, KEEP_ALIVE_PERIOD)
        self.on_lost = self._renewal.on_lost

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
        began = self._clock()
        granted = self._client.call(
            lambda rpc, channel, timeout: rpc.LeaseStub(channel).LeaseGrant(grant, timeout=timeout)
        )
        free = rpc.Compare(key=self._key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=0)
        take = rpc.RequestOp(request_put=rpc.PutRequest(key=self._key, value=self._holder.encode(), lease=granted.ID))
        taken = self._client.transact(free, [take])
        if not taken.succeeded:
            self._revoke(granted.ID)
            return False
        self._lease, self._revision = granted.ID, taken.header.revision
        self._renewed = began
        self._renewal.start()
        return True

    def write(self, operations: Sequence[Any]) -> None:
        """Commit these operations atomically, while this process holds the lock.

        Raises:
            JournalLostError: it no longer holds the lock; nothing was committed.
            EtcdError: see EtcdClient.
        """
        rpc = self._client.messages
        ours = rpc.Compare(
            key=self._key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=self._revision
        )
        if not self._client.transact(ours, operations).succeeded:
            raise self._gone()

    def release(self) -> None:
        """Let it go."""
        self._renewal.end()
        lease, self._lease = self._lease, 0
        if lease:
            self._revoke(lease)

    def _revoke(self, lease: int) -> None:
        request = self._client.messages.LeaseRevokeRequest(ID=lease)
        with contextlib.suppress(EtcdError):  # it expires on its own
            self._client.call(
                lambda rpc, channel, timeout: rpc.LeaseStub(channel).LeaseRevoke(request, timeout=timeout)
            )

    def _renew(self) -> None:
        began = self._clock()
        request = self._client.messages.LeaseKeepAliveRequest(ID=self._lease)
        try:
            answer = self._client.call(
                lambda rpc, channel, timeout: next(
                    rpc.LeaseStub(channel).LeaseKeepAlive(iter([request]), timeout=timeout)
                )
            )
        except EtcdUnreachableError as error:
            if self._clock() - self._renewed > LEASE:
                raise JournalLostError(f"etcd was not reached for {LEASE:g} s ({error})") from None
            return
        except EtcdError as error:
            raise JournalLostError(f"etcd refuses to renew its lease: {error}") from None
        if answer.TTL <= 0:
            raise self._gone()
        self._renewed = began

    def _gone(self) -> JournalLostError:
        try:
            other = self.holder
        except EtcdError:
            other = ""
        now = f"{other} has it now" if other else "no other driver has it yet"
        return JournalLostError(f"its lease in etcd has expired, after a silence of more than {LEASE:g} s; {now}")
