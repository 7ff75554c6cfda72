"""A real agent proxies what its workers ask of a store of another host, and no longer than it lives."""

from __future__ import annotations

import shlex
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edriver.v1 import agent_pb2
from edriver.wire import store_protocol as protocol
from edriver.wire.tls_files import write_tls_files
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from tests.linked_hosts import INTERFACE, IPV4, LinkedHost, give_address, linked_hosts
from tests.process.fake_driver import finish, host, in_loop, script
from tests.process.running import SCRIPTS, running
from tests.process.sites import parent_of
from tests.torch.run_credentials import worker_credentials

ELSEWHERE = "192.0.2.1"
"""An address by which no host is this machine."""

SETS_A_KEY = """
import os, socket, sys
proxy = socket.socket(socket.AF_UNIX)
proxy.connect(os.environ["EDRIVER_STORE_PROXY"])
for request in sys.argv[1:]:
    proxy.sendall(bytes.fromhex(request))
    print(proxy.recv(8, socket.MSG_WAITALL).hex(), flush=True)
"""

SAYS_WHERE = """
import os
print(os.environ.get("EDRIVER_STORE_PROXY"), flush=True)
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
async def _environment_has_no_proxy(
    command: Sequence[str], address: str, credentials: agent_pb2.WorkerCredentials | None
) -> None:
    async with host(command, address=address, credentials=credentials) as here:
        here.driver.start_worker(1)
        await here.driver.until(lambda: bool(here.driver.texts()))
        assert here.driver.texts() == [b"None"]
        await finish(here)


def test_where_all_hosts_are_this_machine_there_is_no_proxy() -> None:
    _environment_has_no_proxy(script(SAYS_WHERE), "127.0.0.1", worker_credentials())


def test_without_credentials_there_is_no_proxy() -> None:
    _environment_has_no_proxy(script(SAYS_WHERE), ELSEWHERE, None)


def test_workers_that_may_be_in_another_network_have_no_proxy() -> None:
    command = ["sh", "-c", f"exec {shlex.join(script(SAYS_WHERE))}"]
    _environment_has_no_proxy(command, ELSEWHERE, worker_credentials())


def test_the_members_on_a_host_share_their_agents_connection(tmp_path: Path) -> None:
    with linked_hosts(1) as (machine,):
        other = f"{IPV4}200"
        give_address(machine.namespace, other, INTERFACE)
        flags = ["-np", "4", "-H", f"{machine.address}:2,{other}:2"]
        command = [sys.executable, str(SCRIPTS / "train.py")]
        through = ["ip", "netns", "exec", machine.namespace]
        with running([*flags, *command], tmp_path, {"EPOCHS": "20000"}, through) as run:
            run.line("rank 3 passed step 5")
            workers = run.pids()
            agents = sorted({parent_of(pid) for pid in workers.values()})
            listening = {line.split()[3] for line in sockets(machine, "--listening") if f"pid={workers[0]}," in line}
            shared = [line for line in sockets(machine) if line.split()[4] in listening and f"pid={agents[0]}," in line]
            (store,) = {line.split()[4] for line in shared}
            callers = [line for line in sockets(machine) if line.split()[4] == store]
            assert [sum(f"pid={agent}," in line for line in callers) for agent in agents] == [1, 1]
            assert len(callers) == 2
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
            assert run.gone(), run.left_behind()


def sockets(host: LinkedHost, *flags: str) -> list[str]:
    """What ss(8) prints of the TCP sockets on a host: the fourth word is the address, the fifth the other end's."""
    command = ["ip", "netns", "exec", host.namespace, "ss", "--no-header", "--tcp", "--numeric", "--processes", *flags]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
