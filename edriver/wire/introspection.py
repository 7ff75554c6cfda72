"""What lets generic tools (grpcurl, load balancers, dashboards) ask this server without our files: grpc.health.v1 and
server reflection (github.com/grpc/grpc/blob/master/doc/server-reflection.md). Both reveal nothing about the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

INTROSPECTION_SERVICES: Final = (health.SERVICE_NAME, reflection.SERVICE_NAME)
"""The full names of the added services."""


async def add_introspection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Serve both, for a server that has not started yet.

    Args:
        server: the server.
        services: the full names of its services, which are serving from its start to its end.
    """
    state = health.aio.HealthServicer()
    for service in ("", *services):
        await state.set(service, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    reflection.enable_server_reflection([*services, *INTROSPECTION_SERVICES], server)
