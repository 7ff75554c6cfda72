"""The store of a round with many members: the real server over TLS, and members that only introduce themselves.

    python -m benchmarks.scale store --members 64 256 1024

What a member of a Gloo group asks of the store: it connects, sets its own addresses, sees whether the store compresses,
and reads the addresses of all members in one request. A member's addresses are 154 bytes, here random ones, and 8 for
each member: the numbers from 0 on in a process's first group (torch 2.13, seen by a store that records what it is
asked). The server runs in a process, as in rank 0; two others play all members. Times are from the first connection on;
the traffic is what all members receive.

Each size is measured twice: with a connection for each member, and with hosts of eight, whose members connect through a
proxy as their agent has it (edriver/agent/store_proxy.py). Two more processes have all proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import usage_of
from edriver.agent.store_proxy import StoreProxy
from edriver.system.descriptors import raise_limit
from edriver.wire import store_protocol as protocol
from edriver.wire.tls_files import member_context
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from tests.torch.run_credentials import tls_credentials

PLAYERS: Final = 2
HOST_SIZE: Final = 8
BOUND: Final = 300.0
"""Seconds that anything may take."""

STEPS: Final = ("connected", "set", "read")
ADDRESS_BYTES: Final = 154


def serve(folder: str) -> None:
    """Be the server until standard input ends."""
    raise_limit()
    server = StoreServer("127.0.0.1", StoreTransport(Path(folder)))
    print(server.port, flush=True)
    sys.stdin.read()


def proxy(folder: str, *paths: str) -> None:
    """Be the proxies of several hosts until standard input ends."""
    raise_limit()

    async def serve() -> None:
        context = member_context(ssl.PROTOCOL_TLS_CLIENT, Path(folder))
        proxies = [StoreProxy(Path(path), context) for path in paths]
        print(len(proxies), flush=True)
        await asyncio.to_thread(sys.stdin.read)

    asyncio.run(serve())


def play(folder: str, port: str, first: str, count: str, members: str, *proxies: str) -> None:
    """Be so many members, one step of all of them after the other; prints when each step has ended.

    With proxies, the first eight members share the first one, and so on.
    """
    raise_limit()
    wire, size, numbers = StoreTransport(Path(folder)), int(members), range(int(first), int(first) + int(count))
    pairs = b"".join(number.to_bytes(8, "little") for number in range(size))
    keys = protocol.as_list(b"0/%d" % number for number in range(size))
    print("ready", flush=True)
    sys.stdin.readline()
    ended: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        callers = []
        for at, _ in enumerate(numbers):
            caller, address = (
                wire.caller(proxies[at // HOST_SIZE], 0) if proxies else wire.caller("127.0.0.1", int(port))
            )
            caller.settimeout(BOUND)
            caller.connect(address)  # type: ignore[arg-type]
            callers.append(stack.enter_context(contextlib.closing(caller)))
            if proxies:
                caller.sendall(request(protocol.VIA, 0, b"round", protocol.via_address("127.0.0.1", int(port))))
        if proxies:
            assert not any(received(caller) for caller in callers), "a proxy has not reached the store"
        ended["connected"] = time.monotonic()
        for number, caller in zip(numbers, callers, strict=True):
            caller.sendall(request(protocol.SET, 1, b"0/%d" % number, os.urandom(ADDRESS_BYTES) + pairs))
        for caller in callers:
            received(caller)
        ended["set"] = time.monotonic()
        for caller in callers:
            caller.sendall(request(protocol.CHECK, 2, protocol.COMPRESSION_KEY, b""))
        for caller in callers:
            received(caller)
        for caller in callers:
            caller.sendall(request(protocol.COMPRESSED_MULTI_GET, 3, b"", keys))
        ended["bytes"] = sum(received(caller) for caller in callers)
        ended["read"] = time.monotonic()
        print(json.dumps(ended), flush=True)
        sys.stdin.readline()


def request(kind: int, number: int, key: bytes, value: bytes) -> bytes:
    """A request, as the server takes it."""
    return protocol.REQUEST_FORMAT.pack(kind, number, len(key), len(value)) + key + value


def received(caller: socket.socket) -> int:
    """Receive an answer; returns its length in bytes."""
    head = b""
    while len(head) < protocol.REPLY_FORMAT.size:
        head += some(caller, protocol.REPLY_FORMAT.size - len(head))
    _, size = protocol.REPLY_FORMAT.unpack(head)
    left: int = size
    while left:
        left -= len(some(caller, min(left, 1 << 20)))
    return int(size)


def some(caller: socket.socket, most: int) -> bytes:
    """At least one byte.

    Raises:
        ConnectionResetError: the connection is closed.
    """
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            if data := caller.recv(most):
                return data
            raise ConnectionResetError("the store has closed the connection")


def measured(members: int) -> Iterator[dict[str, Any]]:
    """The figures of one size, as two lines of the output have them."""
    for proxied in (False, True):
        yield _measured(members, proxied)


def _measured(members: int, proxied: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = tls_credentials(Path(name) / "tls")
        server = stack.enter_context(part("serve", folder))
        port = line_of(server)
        share = -(-members // PLAYERS)
        players, proxies = [], []
        for first in range(0, members, share):
            count = min(share, members - first)
            hosts = -(-count // HOST_SIZE) if proxied else 0
            paths = [Path(name, f"{first + host}.sock") for host in range(hosts)]
            if paths:
                proxies.append(stack.enter_context(part("proxy", folder, *paths)))
                line_of(proxies[-1])
            players.append(stack.enter_context(part("play", folder, port, first, count, members, *paths)))
        for player in players:
            line_of(player)
        parts = {"server": [server], "proxies": proxies, "members": players}
        before = {what: [usage_of(process.pid).seconds for process in those] for what, those in parts.items()}
        began = time.monotonic()
        for player in players:
            tell(player)
        ended = [json.loads(line_of(player)) for player in players]
        used = {what: [usage_of(process.pid).seconds for process in those] for what, those in parts.items()}
        memory = usage_of(server.pid).memory
        for player in players:
            tell(player)
        return {
            "members": members,
            "hosts_have_proxies": proxied,
            **{
                f"{step}_s": round(max(each[step] for each in ended) - began, 3)
                for step in ("connected", "set", "read")
            },
            **{f"{what}_cpu_s": round(sum(used[what]) - sum(before[what]), 2) for what in parts},
            "server_mb": round(memory / 1e6),
            "mb_to_all": round(sum(each["bytes"] for each in ended) / 1e6),
        }


@contextlib.contextmanager
def part(what: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of this module, which is killed at the end."""
    command = [sys.executable, "-m", "benchmarks.scale_store", what, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """What it prints next."""
    assert process.stdout is not None, "it is a pipe"
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    """Have it continue."""
    assert process.stdin is not None, "it is a pipe"
    print(file=process.stdin, flush=True)


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {"serve": serve, "proxy": proxy, "play": play}
    parts[sys.argv[1]](*sys.argv[2:])
