"""The key-value store in which a round's members find each other, in place of torch's TCPStore.

TCPStore looks up the name of every address that it connects to or accepts, even if nothing is logged: a DNS query per
member and round, one after the other in rank 0's only thread, 5 s each when an answer is lost (torch 2.13). Cut, its
client logs with another query, tries again on its own for the whole timeout, or waits for ever for a stopped server;
none of that can be stopped from outside. A store that only has to introduce processes to each other is small.

The server is in store_server.py, their protocol in store_protocol.py.

The store implements what torch asks of the store of a Gloo group, with the extended interface: a member sets its own
address and reads those of all others in one request (`multi_get`). Without it, Gloo makes two requests for each member,
which took most of the time in which a group of sixteen was built (docs/benchmarks/proof.md).

Each worker keeps its store listening from the start, so that becoming rank 0 takes no further message.

Between hosts, the members on one host share a connection to the store: their agent's proxy
(edriver/agent/store_proxy.py). With 1,024 members, TLS handshakes with each of them took most of the time in which they
met (docs/benchmarks/scale.md).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import Store

from edriver.wire import store_protocol as protocol
from edriver.wire.store_protocol import as_list, items_of
from edriver.worker.group.store_transport import StoreTransport

logger = logging.getLogger("edriver.worker")


class StoreClient(Store):
    """A round's connection to rank 0's StoreServer, which torch uses as its store; `sever` ends it from any thread.

    It has the methods of torch's Store but for queues and `list_keys`. A Gloo group needs set and multi_get (get and
    wait, where Gloo is not told to use the extended interface: worker_environment.py), an NCCL one set and get (check,
    where the user has turned on the signal by which one rank has all others dump their flight recorders).

    Attributes:
        last_set: the key that was set last; its prefix names the group that was made last.
    """

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float,
        wire: StoreTransport,
        members_of: Callable[[str, bool], int | None] | None = None,
        shared_as: str = "",
    ) -> None:
        """Prepare to connect.

        Args:
            host: the server's address, or the path of its unix socket.
            port: the server's port.
            timeout: in seconds, for connecting and for a `get` or `wait` without a timeout.
            wire: the transport of the connection.
            members_of: returns the number of members that meet at a key, or None for other keys. Its second argument
                is False for a key that one member sets and all others get, and True for the first of several keys that
                all of them get together. No such call returns before all members have arrived, because `sever` cannot
                end what follows: they build an NCCL communicator, which has no timeout.
            shared_as: the name by which clients on this host share a connection, if the host has a proxy: the keys that
                these have set are deleted once the last of them is closed. Empty: it has a connection of its own.
        """
        super().__init__()
        self.last_set = ""
        self._limit = timeout
        self._members_of = members_of
        self._wire, self._host, self._port = wire, host, port
        self._shared_as = shared_as
        self._proxy = wire.proxy_to(host) if shared_as else None
        self._socket, self._address = wire.caller(host, port) if self._proxy is None else wire.caller(self._proxy, 0)
        self._lock = threading.Lock()
        self._number = 0
        self._received = bytearray()
        self._server_compresses: bool | None = None

    def connect(self) -> None:
        """Connect to the server.

        Raises:
            DistNetworkError: it cannot be reached. A server listens before its worker is given a place in a round, so
                that it refuses means that it is gone.
        """
        if self._proxy is not None and self._connect_by_proxy(self._proxy):
            return
        try:
            if self._proxy is not None:
                self._socket.close()
                self._socket, self._address = self._wire.caller(self._host, self._port)
            self._socket.settimeout(self._limit)
            self._socket.connect(self._address)  # type: ignore[arg-type]
        except OSError as error:
            raise DistNetworkError(f"rank 0's store at {self._address} cannot be reached: {error}") from error

    def _connect_by_proxy(self, proxy: str) -> bool:
        """Connect through this host's proxy; returns whether that can be done.

        Raises:
            DistNetworkError: the server does not answer, or `sever` was called.
        """
        try:
            self._socket.settimeout(self._limit)
            self._socket.connect(proxy)
            where = protocol.via_address(self._host, self._port)
            obstacle = self._ask(protocol.VIA, self._shared_as, where).decode(errors="replace")
        except DistStoreError:
            text = f"rank 0's store at {self._host}:{self._port} cannot be reached: not within {self._limit:g} s"
            raise DistNetworkError(text) from None
        except OSError as error:
            obstacle = str(error)
        if obstacle:
            logger.debug("rank 0's store is not reached through the proxy at %s: %s", proxy, obstacle)
        return not obstacle

    def sever(self) -> None:
        """End the connection: all calls that wait for it raise DistNetworkError, now and later."""
        with contextlib.suppress(OSError):  # not connected, or no longer
            # Not ssl's: that one forgets its state first, which another thread may be using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back. Not while another thread uses it."""
        self._socket.close()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self.last_set = key
        self._ask(protocol.SET, key, _bytes(value))
        self._meet(key)

    def get(self, key: str) -> bytes:
        """The key's value, as soon as it is set."""
        value = self._ask(protocol.GET, key)
        self._meet(key)
        return value

    def add(self, key: str, value: int) -> int:
        """Add to a key that counts, from 0; answers the sum."""
        return int(self._ask(protocol.ADD, key, b"%d" % value))

    def append(self, key: str, value: str | bytes) -> None:
        """Add bytes to the end of a key's value, at first empty."""
        self._ask(protocol.APPEND, key, _bytes(value))

    def has_extended_api(self) -> bool:
        """Tell torch that there are append, multi_get and multi_set."""
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of several keys, as soon as all of them are set."""
        names = as_list(key.encode() for key in keys)
        if len(keys) >= protocol.COMPRESSED_KEYS and self._compresses():
            found = _decompressed(self._ask(protocol.COMPRESSED_MULTI_GET, "", names, shown=keys))
        else:
            found = self._ask(protocol.MULTI_GET, "", names, shown=keys)
        if keys:
            self._meet(keys[0], together=True)
        return list(items_of(found))

    def _compresses(self) -> bool:
        """Whether the server is of a release that compresses lists."""
        if self._server_compresses is None:
            self._server_compresses = self._ask(protocol.CHECK, protocol.COMPRESSION_KEY.decode()) == b"1"
        return self._server_compresses

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Set several keys, one after the other."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if its value is as expected, or if it is not set and nothing is expected.

        Returns:
            The value afterwards; of a key that is not set, what was expected.
        """
        return self._ask(protocol.COMPARE_SET, key, as_list((_bytes(expected), _bytes(desired))))

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it was set."""
        return self._ask(protocol.DELETE, key) == b"1"

    def num_keys(self) -> int:
        """The number of keys, of all rounds."""
        return int(self._ask(protocol.COUNT, ""))

    deleteKey = delete_key  # noqa: N815  torch's PrefixStore, which is C++, calls the two by these names
    getNumKeys = num_keys  # noqa: N815

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a `get` or `wait` that names no timeout waits from now on."""
        self._limit = timeout.total_seconds()

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have been set."""
        return all(self._ask(protocol.CHECK, key) == b"1" for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys have been set.

        Raises:
            DistStoreError: that took longer than the timeout; the store can be used on.
            DistNetworkError: the connection is closed.
        """
        for key in keys:
            self._ask(protocol.GET, key, limit=None if timeout is None else timeout.total_seconds())

    def _meet(self, key: str, together: bool = False) -> None:
        """Wait until all have come that meet at this key, if any do."""
        members = self._members_of(key, together) if self._members_of else None
        if members is None:
            return
        if self.add(f"{key}/members", 1) == members:
            self._ask(protocol.SET, f"{key}/complete")
        else:
            self._ask(protocol.GET, f"{key}/complete")

    def _ask(
        self, kind: int, key: str, value: bytes = b"", limit: float | None = None, shown: list[str] | None = None
    ) -> bytes:
        name = key.encode()
        limit = self._limit if limit is None else limit
        with self._lock:
            self._number += 1
            try:
                self._socket.settimeout(limit)
                self._socket.sendall(
                    protocol.REQUEST_FORMAT.pack(kind, self._number, len(name), len(value)) + name + value
                )
                return self._answer_to(self._number)
            except TimeoutError:
                raise DistStoreError(f"{shown or key!r} was not set within {limit:g} s") from None
            except OSError as error:
                raise DistNetworkError(f"the connection to rank 0's store is lost: {error}") from error

    def _answer_to(self, number: int) -> bytes:
        """Wait for this request's answer, passing over those that came too late for an earlier one."""
        while True:
            if len(self._received) >= protocol.REPLY_FORMAT.size:
                answered, size = protocol.REPLY_FORMAT.unpack_from(self._received)
                end = protocol.REPLY_FORMAT.size + size
                if len(self._received) >= end:
                    answer = bytes(self._received[protocol.REPLY_FORMAT.size : end])
                    del self._received[:end]
                    if answered == number:
                        return answer
                    continue
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("closed by the other end")
            self._received += data


def _decompressed(answer: bytes) -> bytes:
    try:
        return protocol.decompressed(answer)
    except ValueError as error:
        raise DistNetworkError(f"rank 0's store has sent {error}") from None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
