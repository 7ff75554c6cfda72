"""torch's Store on `edriver rendezvous`: what the agents of torchrun agree on once they have a rank."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import Store
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStoreInfo,
)

from edriver.model.limits import MAX_LIST_ITEMS
from edriver.rendezvous.torchrun.client import RendezvousClient
from edriver.v1 import rendezvous_pb2 as pb

_REQUEST_ID_BYTES: Final = 16


class RendezvousStore(Store):
    """The keys of a run, at a server; `timeout` and `set_timeout` are torch's own.

    Every method raises DistNetworkError where the server stays away for longer than the timeout, and DistStoreError
    where it refuses, or where what is waited for does not come.

    Args:
        client: to the server.
        run_id: the run.
        timeout: seconds for which is waited.
    """

    def __init__(self, client: RendezvousClient, run_id: str, timeout: float) -> None:
        super().__init__()
        self._client = client
        self._run_id = run_id
        self._ahead: tuple[str, bytes] | None = None  # a key that was read with the one before, and its value
        self.set_timeout(timedelta(seconds=timeout))

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self.multi_set([key], [value])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set keys, all at once.

        Raises:
            ValueError: there are not as many values as keys.
        """
        for chunk in _chunks(list(zip(keys, values, strict=True))):
            pairs = [pb.KeyValue(key=key, value=_bytes(value)) for key, value in chunk]
            self._call(self._client.store.SetKeys, pb.SetKeysRequest(run_id=self._run_id, pairs=pairs))

    def get(self, key: str) -> bytes:
        """The value of a key, as soon as it is set.

        torch asks for the address of rank 0's store in a round, and then for its port: both come at once, so that an
        agent makes one call in place of two.
        """
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == key:
            return ahead[1]
        prefix = key.removesuffix(RendezvousStoreInfo.MASTER_ADDR_KEY)
        if prefix == key or not prefix.startswith(f"torch.rendezvous.{self._run_id}."):
            return self.multi_get([key])[0]
        port_key = prefix + RendezvousStoreInfo.MASTER_PORT_KEY
        address, port = self.multi_get([key, port_key])
        self._ahead = port_key, port
        return address

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys, as soon as all are set."""
        return self._wait_for(keys, self._limit, wait_only=False)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set."""
        self._wait_for(keys, self._limit if timeout is None else timeout.total_seconds(), wait_only=True)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set."""
        requests = (pb.CheckKeysRequest(run_id=self._run_id, keys=chunk) for chunk in _chunks(keys))
        return all(self._call(self._client.store.CheckKeys, request).all_set for request in requests)

    def add(self, key: str, value: int) -> int:
        """Add to the number that a key has, or to 0; returns the sum."""
        return int(self._change(key, add=value).value)

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key, or to nothing."""
        self._change(key, append=_bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if its value is as expected, or if it is not set and nothing is expected.

        Returns:
            The value afterwards; of a key that is not set, what was expected.
        """
        compare = pb.CompareSet(expected=_bytes(expected), desired=_bytes(desired))
        return bytes(self._change(key, compare_set=compare).value)

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it was set."""
        return bool(self._change(key, delete_key=pb.DeleteKey()).existed)

    def num_keys(self) -> int:
        """The number of keys."""
        return int(self._call(self._client.store.CountKeys, pb.CountKeysRequest(run_id=self._run_id)).count)

    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set."""
        return True

    deleteKey = delete_key  # noqa: N815  torch's PrefixStore, which is C++, calls the two by these names
    getNumKeys = num_keys  # noqa: N815

    @property
    def _limit(self) -> float:
        """Seconds for which is waited."""
        timeout: timedelta = self.timeout  # type: ignore[attr-defined]  # torch's stub has set_timeout alone
        return timeout.total_seconds()

    def _change(self, key: str, **change: Any) -> pb.ChangeKeyResponse:
        # The server makes it once, should it arrive again because the answer was lost.
        request_id = os.urandom(_REQUEST_ID_BYTES)
        request = pb.ChangeKeyRequest(run_id=self._run_id, key=key, request_id=request_id, **change)
        answer: pb.ChangeKeyResponse = self._call(self._client.store.ChangeKey, request)
        return answer

    def _wait_for(self, keys: Sequence[str], limit: float, wait_only: bool) -> list[bytes]:
        deadline = time.monotonic() + limit
        found: list[bytes] = []
        for chunk in _chunks(keys):
            request = pb.GetKeysRequest(run_id=self._run_id, keys=chunk, wait_only=wait_only)
            left = deadline - time.monotonic()
            try:
                found += self._call(self._client.store.GetKeys, request, left, wait=True).values
            except TimeoutError:
                names = ", ".join(map(repr, itertools.islice(keys, 3)))
                raise DistStoreError(
                    f"{names}{', ...' if len(keys) > 3 else ''}: not all keys were set within {limit:g} s"
                ) from None
        return found

    def _call(self, method: Any, request: object, limit: float | None = None, wait: bool = False) -> Any:
        try:
            limit = self._limit if limit is None else limit
            return self._client.call(method, request, max(limit, 0.0), wait)
        except RendezvousConnectionError as error:
            raise DistNetworkError(str(error)) from error
        except RendezvousError as error:
            raise DistStoreError(str(error)) from error


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    """What goes into one message each."""
    return [items[at : at + MAX_LIST_ITEMS] for at in range(0, len(items), MAX_LIST_ITEMS)]
