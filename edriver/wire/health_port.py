"""A TCP port with grpc.health.v1 alone, for probes that speak neither TLS nor tokens, as Kubernetes' do.

It says whether the process answers and is ready, and nothing else of the run. There is no token to tell a probe by, so
when there are too many connections the oldest are closed, whatever they have asked: a probe has its answer by then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from edriver.common.join_config import at_port
from edriver.wire.call_faults import CallFaults
from edriver.wire.port_watch import AcceptedSocket, PortLimit, close_surplus

LIVENESS, READINESS = "liveness", "readiness"
"""The names by which a probe asks: whether the event loop turns; whether the process is where it is wanted."""

_ALL_ADDRESSES: Final = ("::", "0.0.0.0")  # noqa: S104  a probe comes from the node; the first is IPv4's, too

_log = logging.getLogger("edriver.health")

MAX_CONNECTIONS: Final = 64
"""Connections at a time. When there are more, the oldest are closed."""

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds in which a caller must have shown that it speaks HTTP/2."""

IDLE_TIMEOUT: Final = 15.0
"""Seconds that a connection may be open without a call on it."""

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # Room for those that come between two looks: beyond that each is closed as soon as it is accepted, probes as well.
    ("grpc.max_allowed_incoming_connections", 4 * MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT * 1000)),
    ("grpc.max_connection_idle_ms", int(IDLE_TIMEOUT * 1000)),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_receive_message_length", 4096),
)


class HealthPort:
    """Serves grpc.health.v1 without TLS, from `open` to `close`.

    Args:
        port: the port; 0: any free one.
        ready: set when the process is ready.
    """

    def __init__(self, port: int, ready: asyncio.Event) -> None:
        self._port = port
        self._ready = ready
        self._server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> int:
        """Listen at all addresses of this machine; returns the port.

        Raises:
            OSError: the port cannot be had.
        """
        state = health.aio.HealthServicer()
        for service in ("", LIVENESS):
            await state.set(service, health_pb2.HealthCheckResponse.SERVING)
        await state.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        # Of the event loop that it is made in.
        self._server = grpc.aio.server(options=_OPTIONS, interceptors=(CallFaults(),))
        health_pb2_grpc.add_HealthServicer_to_server(state, self._server)
        port = self._listen(self._server)
        await self._server.start()

        def log(surplus: AcceptedSocket) -> None:
            _log.warning(
                "too many connections to the health port %s, from %s and perhaps others: the oldest ones are closed",
                port,
                surplus.where[0],
            )

        surplus = close_surplus(port, PortLimit(MAX_CONNECTIONS, math.inf), log)
        self._tasks = [asyncio.create_task(self._tell(state)), asyncio.create_task(surplus)]
        return port

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.stop(0)

    def _listen(self, server: grpc.aio.Server) -> int:
        failure = ""
        for address in _ALL_ADDRESSES:
            try:
                return server.add_insecure_port(at_port(address, self._port))
            except RuntimeError as error:
                failure = str(error)
        raise OSError(f"the health port {self._port} cannot be opened: {failure}")

    async def _tell(self, state: health.aio.HealthServicer) -> None:
        await self._ready.wait()
        await state.set(READINESS, health_pb2.HealthCheckResponse.SERVING)
