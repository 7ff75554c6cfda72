"""How a call reaches workers on other hosts, and their results come back: through a store of `edriver rendezvous`.

Only those get in who show its credentials, which the workers' environment brings with the run's own join configs.

Nothing of the credentials is on a command line. A variable of the environment cannot hold the call itself: it has at
most 128 KiB (MAX_ARG_STRLEN), and nothing would come back by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc

from edriver.calls.parcels import ParcelError
from edriver.common.join_config import JoinConfig
from edriver.v1 import rendezvous_pb2_grpc
from edriver.v1.rendezvous_pb2 import ChangeKeyRequest, GetKeysRequest, KeyValue, SetKeysRequest
from edriver.wire.driver_channel import rendezvous_channel

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a value; what is larger takes several."""

CALL_TIMEOUT: Final = 60.0
"""Seconds that a call of the store may take, connecting included."""

_RUN_ID: Final = "call"
_NAMES: Final = "names"


class ExchangeError(ParcelError):
    """The exchange cannot be used; the message is a sentence for the user."""


class RemoteParcelStore:
    """A client of a server that stores parcels by name.

    Args:
        credentials: the credentials of the server.
    """

    def __init__(self, credentials: JoinConfig) -> None:
        ready = (_ready(credentials, target) for target in credentials.drivers)
        channel = next((channel for channel in ready if channel is not None), None)
        if channel is None:
            raise ExchangeError(f"the caller of edriver.launch cannot be reached at {', '.join(credentials.drivers)}")
        self._channel = channel
        self._store = rendezvous_pb2_grpc.StoreServiceStub(channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def put(self, name: str, data: bytes) -> None:
        """Store a parcel.

        Raises:
            ExchangeError: the parcel is too large, or the server is gone.
        """
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        with _in_words():
            for number, chunk in enumerate(chunks):
                pairs = [KeyValue(key=f"{name}/{number}", value=chunk)]
                self._store.SetKeys(SetKeysRequest(run_id=_RUN_ID, pairs=pairs), timeout=CALL_TIMEOUT)
            pairs = [KeyValue(key=name, value=b"%d" % len(chunks))]
            self._store.SetKeys(SetKeysRequest(run_id=_RUN_ID, pairs=pairs), timeout=CALL_TIMEOUT)
            added = ChangeKeyRequest(run_id=_RUN_ID, key=_NAMES, request_id=os.urandom(16), append=f"{name}\n".encode())
            self._store.ChangeKey(added, timeout=CALL_TIMEOUT)

    def get(self, name: str) -> bytes:
        """Return a parcel that was stored.

        Raises:
            ExchangeError: the parcel does not exist, or the server is gone.
        """
        with _in_words():
            count = int(self._value(name))
            return b"".join(self._value(f"{name}/{number}") for number in range(count))

    def names(self) -> list[str]:
        """The names of the stored parcels, in the order in which they were stored.

        Raises:
            ExchangeError: no parcel is stored, or the server is gone.
        """
        with _in_words():
            return self._value(_NAMES).decode().split()

    def _value(self, key: str) -> bytes:
        request = GetKeysRequest(run_id=_RUN_ID, keys=[key])
        return bytes(self._store.GetKeys(request, timeout=CALL_TIMEOUT).values[0])


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise ExchangeError(f"the exchange of edriver.launch: {error.details()}") from None


def _ready(credentials: JoinConfig, target: str) -> grpc.Channel | None:
    """A channel to one of the server's addresses; None if the server cannot be reached there."""
    channel = rendezvous_channel(target, credentials)
    try:
        grpc.channel_ready_future(channel).result(CALL_TIMEOUT / max(1, len(credentials.drivers)))
    except grpc.FutureTimeoutError:
        channel.close()
        return None
    return channel
