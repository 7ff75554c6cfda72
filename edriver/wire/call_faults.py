"""What a call that raises leads to: an answer. What a caller can bring about is not logged, all else once a kind.

gRPC logs a traceback for bytes that are not a valid message, and two for a call that its caller has left at the wrong
moment.

So edriver answers calls that raise by itself, and each kind of exception that is its own fault is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

_log = logging.getLogger("edriver.calls")

MAX_KINDS: Final = 100
"""Kinds of exceptions that are logged; those after them are not."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Around: TypeAlias = Callable[[Any], AbstractAsyncContextManager[None]]

_NO_MESSAGE: Final = object()


class AroundCalls(grpc.aio.ServerInterceptor):
    """Has something happen before and after the handling of each call.

    Args:
        around: makes a context of a call's; each call is handled within one.
    """

    def __init__(self, around: Around) -> None:
        self._around = around

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Hand everything on."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._wrapped(handler)

    def _wrapped(self, handler: Handler) -> Handler:
        serializers = (self._deserializer(handler), handler.response_serializer)
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(handler.stream_stream), *serializers)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._answering(handler.stream_unary), *serializers)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(handler.unary_stream), *serializers)
        return grpc.unary_unary_rpc_method_handler(self._answering(handler.unary_unary), *serializers)

    def _deserializer(self, handler: Handler) -> Any:
        return handler.request_deserializer

    def _answering(self, behaviour: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            async with self._around(context):
                return await behaviour(request, context)

        return answer

    def _streaming(self, behaviour: Any) -> Any:
        if not inspect.isasyncgenfunction(behaviour):
            return self._answering(behaviour)  # it writes to the context

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._around(context), contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

        return stream


class CallFaults(AroundCalls):
    """Answers calls that raise, in place of gRPC; goes before all other interceptors."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self._logged: set[str] = set()

    def _deserializer(self, handler: Handler) -> Any:
        deserializer = handler.request_deserializer
        if deserializer is None or handler.request_streaming:  # it is called while the call is handled
            return deserializer

        def read(data: bytes) -> Any:
            try:
                return deserializer(data)
            except DecodeError:
                return _NO_MESSAGE

        return read

    def _answering(self, behaviour: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            _check(request)
            return await behaviour(request, context)

        return super()._answering(answer)

    def _streaming(self, behaviour: Any) -> Any:
        if not inspect.isasyncgenfunction(behaviour):
            return self._answering(behaviour)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            _check(request)
            async with contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

        return super()._streaming(stream)

    @asynccontextmanager
    async def _answered(self, context: Any) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AbortError:  # it is answered
            raise
        except Exception as error:  # noqa: BLE001  gRPC would log what a caller has brought about
            await self._end(context, error)

    async def _end(self, context: Any, error: Exception) -> None:
        code, text = grpc.StatusCode.INVALID_ARGUMENT, "the request is not a valid message"
        if not isinstance(error, DecodeError):
            code, text = grpc.StatusCode.INTERNAL, f"an internal error of edriver: {type(error).__name__}"
        if not (isinstance(error, DecodeError) or context.cancelled() or context.done()):
            self._note(error)
        try:
            await context.abort(code, text)
        except grpc.aio.AbortError:
            raise
        except Exception:  # noqa: BLE001  the caller has gone
            raise asyncio.CancelledError from None

    def _note(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self._logged and len(self._logged) < MAX_KINDS:
            self._logged.add(kind)
            _log.error("a call failed: an internal error of edriver, please report it", exc_info=error)


def _check(request: object) -> None:
    if request is _NO_MESSAGE:
        raise DecodeError("the request is not a valid message")
