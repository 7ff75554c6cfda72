"""A store of this process, and clients of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport

LIMIT_SECONDS = 300.0
WIRE = StoreTransport()
SERVER = StoreServer("127.0.0.1", WIRE)


@contextlib.contextmanager
def client(server: StoreServer = SERVER) -> Iterator[StoreClient]:
    with client_of(server, WIRE) as connected:
        yield connected


@contextlib.contextmanager
def client_of(
    server: StoreServer, wire: StoreTransport, members_of: Callable[[str, bool], int | None] | None = None
) -> Iterator[StoreClient]:
    with contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, wire, members_of)) as connected:
        connected.connect()
        yield connected
