"""Who at the driver's TCP port has authenticated: the callers of calls that were let in."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallerInterceptor(grpc.aio.ServerInterceptor):
    """Notes the callers of admitted calls; goes behind the interceptor that refuses others.

    Args:
        note: called with each caller, by gRPC's name for it.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Hand everything on."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._noting(handler)

    def _noting(self, handler: Handler) -> Handler:
        serializers = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(handler.stream_stream), *serializers)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._answering(handler.stream_unary), *serializers)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(handler.unary_stream), *serializers)
        return grpc.unary_unary_rpc_method_handler(self._answering(handler.unary_unary), *serializers)

    def _answering(self, behaviour: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            self._note(context.peer())
            return await behaviour(request, context)

        return answer

    def _streaming(self, behaviour: Any) -> Any:
        if not inspect.isasyncgenfunction(behaviour):
            return self._answering(behaviour)  # it writes to the context

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            self._note(context.peer())
            async with contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

        return stream
