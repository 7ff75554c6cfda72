"""Calls that raise: what their callers are answered, and what is logged of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from edriver.v1 import status_pb2, status_pb2_grpc
from edriver.wire.call_faults import CallFaults
from edriver.wire.health_port import HealthPort


class Faulty(status_pb2_grpc.StatusServiceServicer):
    """Each call raises in its own way."""

    async def GetRun(self, _request: Any, _context: Any) -> Any:
        raise KeyError("a bug")

    async def ListRounds(self, _request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.NOT_FOUND, "as meant")

    async def Watch(self, _request: Any, _context: Any) -> Any:
        yield status_pb2.WatchResponse()
        raise RuntimeError("another bug")


async def code_of(channel: grpc.aio.Channel, method: str, message: bytes = b"") -> grpc.StatusCode:
    call = channel.unary_stream(f"/edriver.v1.StatusService/{method}", bytes, bytes)(message)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_a_caller_is_answered_and_each_kind_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server = grpc.aio.server(interceptors=(CallFaults(),))
        status_pb2_grpc.add_StatusServiceServicer_to_server(Faulty(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(3):
                assert await code_of(channel, "GetRun") is grpc.StatusCode.INTERNAL
                assert await code_of(channel, "Watch") is grpc.StatusCode.INTERNAL
                assert await code_of(channel, "ListRounds") is grpc.StatusCode.NOT_FOUND
                assert await code_of(channel, "GetRun", b"\xff") is grpc.StatusCode.INVALID_ARGUMENT
                assert await code_of(channel, "Watch", b"\xff") is grpc.StatusCode.INVALID_ARGUMENT
        await server.stop(0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(work(), 60))
    raised = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert raised == [KeyError, RuntimeError]


def test_bytes_at_the_health_port_that_are_no_message_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        health = HealthPort(0, asyncio.Event())
        port = await health.open()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in ("Check", "Watch"):
                call = channel.unary_stream(f"/grpc.health.v1.Health/{method}", bytes, bytes)(b"\xff\xff")
                with pytest.raises(grpc.aio.AioRpcError) as answer:
                    await call.read()
                assert answer.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await health.close()

    asyncio.run(asyncio.wait_for(work(), 60))
    assert [record for record in caplog.records if record.exc_info] == []
