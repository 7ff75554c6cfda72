"""The proxy through which the members on a host share one connection to the store of their round.

A round's members meet at rank 0's store (edriver/worker/group/store.py), which one thread serves. With TLS each
connection costs it, and the member, about a millisecond of processor time; so a host with eight members makes one. The
proxy listens at a unix socket in the agent's private folder, so only this user's processes reach it. It shows the run's
certificate to the store and insists on the store's, as each member does that connects by itself.

What it carries are the requests as they are: a connection may have many open, and the store answers each by its number.
So the store need not know of proxies. Lists of values alone are asked for once for all that want the same: what the
members of a Gloo group read is the most by far of what a store sends. Who comes while such a list is being asked for
waits until it has come, and is answered by the next: an answer is never older than its question.

No wait here has a bound of its own. Members have one for each of their requests; when the last of them has left, their
connection is given up, even if it is still being made.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edriver.common.join_config import MEMBER_NAME
from edriver.wire import store_protocol as protocol

logger = logging.getLogger("edriver.agent")

HANDSHAKE_TIMEOUT: Final = 3600.0
"""Seconds for a handshake: asyncio wants a bound. Members give up long before."""

MAX_UNREAD_BYTES: Final = 1 << 26
"""Bytes of answers that a member may leave unread, as at the store itself; and of requests, a store."""

READ_BYTES: Final = 1 << 20
"""Bytes that are read ahead of a store: most lists."""

LISTS: Final = (protocol.MULTI_GET, protocol.COMPRESSED_MULTI_GET)


class StoreProxy:
    """Listens from the start. Made, used and closed in one event loop.

    Args:
        path: of its unix socket.
        context: what connections to stores are made with.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, path: Path, context: ssl.SSLContext) -> None:
        self._path = path
        self._context = context
        self._shared: dict[tuple[str, int, bytes], _SharedConnection] = {}
        self._callers: set[asyncio.Task[None]] = set()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
        self._serving = asyncio.get_running_loop().create_task(self._serve(listener), name="store proxy")

    @property
    def connections(self) -> int:
        """How many it has to stores, or is making."""
        return len(self._shared)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        tasks = {self._serving, *self._callers}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._path.unlink(missing_ok=True)

    async def _serve(self, listener: socket.socket) -> None:
        async with await asyncio.start_unix_server(self._take_in, sock=listener) as server:
            await server.serve_forever()

    async def _take_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio makes one for each caller"
        self._callers.add(task)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, READ_BYTES)
        caller = _Caller(writer)
        shared: _SharedConnection | None = None
        try:
            kind, number, name, value = await _request(reader)
            if kind != protocol.VIA:
                raise ValueError("the first request does not say where to")
            shared = self._shared_connection(*protocol.via_address_in(value), name)
            shared.join(caller, number)
            while True:
                shared.ask(caller, *await _request(reader))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            logger.debug("a caller of the store's proxy has left: %s", error)
        except asyncio.CancelledError:
            pass  # by close; asyncio's streams (Python 3.11) would report it as an error
        finally:
            if shared is not None:
                shared.leave(caller)
            caller.close()
            self._callers.discard(task)

    def _shared_connection(self, host: str, port: int, name: bytes) -> _SharedConnection:
        key = host, port, name
        if key not in self._shared:
            self._shared[key] = _SharedConnection(host, port, self._context, lambda: self._shared.pop(key))
        return self._shared[key]


class _Caller:
    """A member, as the proxy sees it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def reply(self, number: int, answer: bytes) -> None:
        """Send an answer; a caller that leaves too much unread is hung up on."""
        self._writer.write(protocol.REPLY_FORMAT.pack(number, len(answer)) + answer)
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.close()

    def close(self) -> None:
        """Hang up on it."""
        self._writer.transport.abort()


_Asker = tuple[_Caller, int]


class _SharedConnection:
    """The connection to a store that callers share, from the first one that asks for it until the last one leaves.

    Args:
        host: the store's address.
        port: its port.
        context: what the connection is made with.
        ended: called once, when no more callers may join.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext, ended: Callable[[], object]) -> None:
        self._host, self._port = host, port
        self._context = context
        self._ended: Callable[[], object] | None = ended
        self._callers: set[_Caller] = set()
        self._joining: list[_Asker] = []
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0
        self._asked: dict[int, list[_Asker]] = {}
        self._lists: dict[tuple[int, bytes], list[_Asker]] = {}
        self._list_of: dict[int, tuple[int, bytes]] = {}
        self._carrying = asyncio.get_running_loop().create_task(self._carry(), name=f"store at {host}:{port}")

    def join(self, caller: _Caller, number: int) -> None:
        """Tell a caller once the store is connected, or why it cannot be."""
        self._callers.add(caller)
        if self._writer is None:
            self._joining.append((caller, number))
        else:
            caller.reply(number, b"")

    def leave(self, caller: _Caller) -> None:
        """A caller's connection is closed."""
        self._callers.discard(caller)
        if not self._callers:
            self._end()
            self._carrying.cancel()

    def ask(self, caller: _Caller, kind: int, number: int, key: bytes, value: bytes) -> None:
        """Pass a request on, without waiting until the store reads it: a caller that leaves meanwhile is to be noticed.

        Raises:
            ValueError: the caller has not waited until the store was connected, asks for what no store knows, at which
                that would hang up on all callers, or asks for more than the store reads.
        """
        if self._writer is None or kind > protocol.LAST_KIND:
            raise ValueError("not a request to a store")
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise ValueError("the store does not read")
        asker = caller, number
        if kind not in LISTS:
            self._send(kind, key, value, [asker])
        elif (kind, value) in self._lists:
            self._lists[kind, value].append(asker)
        else:
            self._ask_for_list((kind, value), [asker])

    def _ask_for_list(self, wanted: tuple[int, bytes], askers: list[_Asker]) -> None:
        kind, keys = wanted
        self._lists[wanted] = []
        self._list_of[self._send(kind, b"", keys, askers)] = wanted

    def _send(self, kind: int, key: bytes, value: bytes, askers: list[_Asker]) -> int:
        assert self._writer is not None, "nothing is asked before"
        self._number += 1
        self._asked[self._number] = askers
        self._writer.write(protocol.REQUEST_FORMAT.pack(kind, self._number, len(key), len(value)) + key + value)
        return self._number

    async def _carry(self) -> None:
        """Connect, and pass answers on until either end closes."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(
                self._host,
                self._port,
                limit=READ_BYTES,
                ssl=self._context,
                server_hostname=MEMBER_NAME,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
            )
            self._writer = writer
            self._answer_joining(b"")
            while True:
                number, size = protocol.REPLY_FORMAT.unpack(await reader.readexactly(protocol.REPLY_FORMAT.size))
                if size > protocol.MAX_LIST_BYTES:
                    raise ConnectionError(f"an answer of {size} bytes")
                self._answer(number, await reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            logger.debug("the connection to the store at %s:%d has ended: %s", self._host, self._port, error)
            self._answer_joining(str(error).encode() or b"it has hung up")
        finally:
            self._end()
            if writer is not None:
                writer.transport.abort()
            for caller in self._callers:
                caller.close()

    def _answer_joining(self, answer: bytes) -> None:
        joining, self._joining = self._joining, []
        for caller, number in joining:
            caller.reply(number, answer)

    def _answer(self, number: int, answer: bytes) -> None:
        for caller, its_number in self._asked.pop(number, ()):
            caller.reply(its_number, answer)
        wanted = self._list_of.pop(number, None)
        if wanted is not None and (later := self._lists.pop(wanted)):
            self._ask_for_list(wanted, later)

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


async def _request(reader: asyncio.StreamReader) -> tuple[int, int, bytes, bytes]:
    """A caller's next request: kind, number, key, value.

    Raises:
        ValueError: the bytes are not a request.
        asyncio.IncompleteReadError: it has hung up.
    """
    kind, number, key_size, value_size = protocol.REQUEST_FORMAT.unpack(
        await reader.readexactly(protocol.REQUEST_FORMAT.size)
    )
    if key_size + value_size > protocol.MAX_REQUEST_BYTES:
        raise ValueError("not a request")
    body = await reader.readexactly(key_size + value_size)
    return kind, number, body[:key_size], body[key_size:]
