"""Connections of a script's own, which severing a round's group must leave alone."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from datetime import timedelta
from typing import Any

import grpc
import torch
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

_LIMIT_SECONDS = 300.0


class ForeignConnection:
    def use(self) -> None:
        raise NotImplementedError


class PlainTcp(ForeignConnection):
    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._near = socket.create_connection(listener.getsockname(), _LIMIT_SECONDS)
            self._far, _ = listener.accept()

    def use(self) -> None:
        self._near.sendall(b"ping")
        assert self._far.recv(4) == b"ping"


class AsyncioTcp(ForeignConnection):
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._reader, self._writer = self._run(self._connect())

    def use(self) -> None:
        self._writer.write(b"ping")
        assert self._run(self._reader.readexactly(4)) == b"ping"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(64):
                writer.write(data)

        self._server = await asyncio.start_server(echo, "127.0.0.1", 0)
        return await asyncio.open_connection(*self._server.sockets[0].getsockname())

    def _run(self, task: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(_LIMIT_SECONDS)


class GrpcTcp(ForeignConnection):
    def __init__(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        handler: Any = grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"Echo": handler}),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        echo: Any = self._channel.stream_stream("/s/Echo")
        self._answers: Iterator[bytes] = echo(iter(self._requests.get, b""))

    def use(self) -> None:
        self._requests.put(b"ping")
        assert next(self._answers) == b"ping"


class GlooGroup(ForeignConnection):
    """A Gloo group that the script made by itself, before the round."""

    def __init__(self, path: str, rank: int, size: int) -> None:
        self._group: Any = ProcessGroupGloo(FileStore(path, size), rank, size, timedelta(seconds=_LIMIT_SECONDS))

    def use(self) -> None:
        self._group.allreduce([torch.ones(1)]).wait()
