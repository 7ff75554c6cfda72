"""gRPC services for a test, over a unix socket of their own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from edriver.driver.rpc.agent_service import SERVER_OPTIONS


@asynccontextmanager
async def served(*services: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with these services: pairs of what registers one, and the servicer."""
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        address = f"unix:{Path(folder, 's')}"
        server = grpc.aio.server(options=SERVER_OPTIONS)
        for register, servicer in services:
            register(servicer, server)
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
        await server.stop(None)
