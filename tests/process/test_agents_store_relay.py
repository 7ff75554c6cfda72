"""A real agent relays what its workers ask of a store of another host, and no longer than it lives."""

from __future__ import annotations

import struct
from pathlib import Path

from edriver.v1 import agent_pb2
from edriver.wire import store_protocol as protocol
from edriver.wire.tls_files import write_tls_files
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from tests.process.fake_driver import finish, host, in_loop, script
from tests.torch.run_credentials import worker_credentials

ELSEWHERE = "192.0.2.1"
"""An address by which no host is this machine."""

SETS_A_KEY = """
import os, socket, sys
relay = socket.socket(socket.AF_UNIX)
relay.connect(os.environ["EDRIVER_STORE_RELAY"])
for request in sys.argv[1:]:
    relay.sendall(bytes.fromhex(request))
    print(relay.recv(8, socket.MSG_WAITALL).hex(), flush=True)
"""

SAYS_WHERE = """
import os
print(os.environ.get("EDRIVER_STORE_RELAY"), flush=True)
"""


def request(kind: int, number: int, key: bytes, value: bytes) -> str:
    return (protocol.REQUEST_FORMAT.pack(kind, number, len(key), len(value)) + key + value).hex()


@in_loop
async def test_a_worker_reaches_the_store_of_another_host_through_its_agent(tmp_path: Path) -> None:
    credentials = worker_credentials()
    store = StoreServer("127.0.0.1", StoreTransport(write_tls_files(credentials, tmp_path)))
    requests = [
        request(protocol.VIA, 1, b"round 1", protocol.via_address(store.host, store.port)),
        request(protocol.SET, 2, b"key", b"value"),
    ]
    async with host([*script(SETS_A_KEY), *requests], address=ELSEWHERE, credentials=credentials) as here:
        here.driver.start_worker(1)
        await here.driver.until(lambda: len(here.driver.texts()) == 2)
        assert here.driver.texts() == [struct.pack("!II", number, 0).hex().encode() for number in (1, 2)]
        await finish(here)


@in_loop
async def _environment_has_no_relay(address: str, credentials: agent_pb2.WorkerCredentials | None) -> None:
    async with host(script(SAYS_WHERE), address=address, credentials=credentials) as here:
        here.driver.start_worker(1)
        await here.driver.until(lambda: bool(here.driver.texts()))
        assert here.driver.texts() == [b"None"]
        await finish(here)


def test_where_all_hosts_are_this_machine_there_is_no_relay() -> None:
    _environment_has_no_relay("127.0.0.1", worker_credentials())


def test_without_credentials_there_is_no_relay() -> None:
    _environment_has_no_relay(ELSEWHERE, None)
