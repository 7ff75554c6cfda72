"""gRPC services for a test, over a unix socket of their own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from edriver.wire.grpc_streams import SERVER_OPTIONS


@asynccontextmanager
async def served(*services: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with these services: pairs of what registers one, and the servicer."""
    async with server_and_channel(*services) as (_, channel):
        yield channel


@asynccontextmanager
async def server_and_channel(*services: Any) -> AsyncIterator[tuple[grpc.aio.Server, grpc.aio.Channel]]:
    """The same, with the server, which the test may stop."""
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        address = f"unix:{Path(folder, 's')}"
        server = grpc.aio.server(options=SERVER_OPTIONS)
        for register, servicer in services:
            register(servicer, server)
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield server, channel
        await server.stop(None)
