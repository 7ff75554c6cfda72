"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio
import tenacity

from edriver.client.addresses import Address
from edriver.client.client import ANSWER_BOUND
from edriver.client.errors import error_of
from edriver.client.redial import Patience, policy
from edriver.v1 import control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc

Answer = TypeVar("Answer")


class AsyncClient:
    """As Client, with the same methods, to be awaited. To be made within a running event loop.

    Args:
        address: where the run's driver is: see `here` and `elsewhere`.
        timeout: seconds that it may take to answer; a watch has no such bound.
    """

    def __init__(self, address: Address, timeout: float = ANSWER_BOUND) -> None:
        self.run_id = address.run_id
        self._timeout = timeout
        credentials = address.credentials
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address.target, options=address.options)
        else:
            self._channel = grpc.aio.secure_channel(address.target, credentials, options=address.options)
        self._status = status_pb2_grpc.StatusServiceStub(self._channel)
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        """Use it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; a watch that is under way ends."""
        await self._channel.close()

    # ---- looking ---------------------------------------------------------------------------------------------

    async def status(self) -> status_pb2.Run:
        """See Client.status."""
        return (await self.snapshot()).run

    async def snapshot(self) -> status_pb2.GetRunResponse:
        """See Client.snapshot."""
        return await self._asked(self._status.GetRun(status_pb2.GetRunRequest(), timeout=self._timeout))

    async def rounds(self, limit: int = 0) -> list[status_pb2.Round]:
        """See Client.rounds."""
        request = status_pb2.ListRoundsRequest(limit=limit)
        return list((await self._asked(self._status.ListRounds(request, timeout=self._timeout))).rounds)

    async def progress_history(self) -> list[status_pb2.ProgressSample]:
        """See Client.progress_history."""
        request = status_pb2.ListProgressRequest()
        return list((await self._asked(self._status.ListProgress(request, timeout=self._timeout))).samples)

    async def events(self, since: int = 0) -> list[status_pb2.Event]:
        """See Client.events."""
        found: list[status_pb2.Event] = []
        while True:
            request = status_pb2.ListEventsRequest(since=found[-1].seq if found else since)
            portion = await self._asked(self._status.ListEvents(request, timeout=self._timeout))
            if not portion.events:
                return found
            found += portion.events

    async def watch(self, since: int = 0) -> AsyncIterator[status_pb2.Event]:
        """See Client.watch."""
        async for told in self._watch(since, progress=False):
            yield told.event

    def watch_progress(self, since: int = 0) -> AsyncIterator[status_pb2.WatchResponse]:
        """See Client.watch_progress."""
        return self._watch(since, progress=True)

    async def _watch(self, since: int, progress: bool) -> AsyncIterator[status_pb2.WatchResponse]:
        seq, patience = since, Patience()
        try:
            async for attempt in tenacity.AsyncRetrying(**policy(patience)):
                with attempt:
                    async for told in self._status.Watch(status_pb2.WatchRequest(since=seq, progress=progress)):
                        patience.heard()
                        seq = told.event.seq or seq
                        yield told
        except grpc.RpcError as error:
            raise error_of(self.run_id, error) from None

    # ---- steering --------------------------------------------------------------------------------------------

    async def drain(self, host: str, slot: int | None = None, reason: str = "") -> int:
        """See Client.drain."""
        request = control_pb2.DrainRequest(host=host, slot=slot, reason=reason)
        return (await self._asked(self._control.Drain(request, timeout=self._timeout))).slots_left

    async def undrain(self, host: str, slot: int | None = None) -> None:
        """See Client.undrain."""
        request = control_pb2.UndrainRequest(host=host, slot=slot)
        await self._asked(self._control.Undrain(request, timeout=self._timeout))

    async def resize(self, size: int) -> None:
        """See Client.resize."""
        await self._asked(self._control.Resize(control_pb2.ResizeRequest(size=size), timeout=self._timeout))

    async def stop(self, reason: str = "") -> None:
        """See Client.stop."""
        await self._asked(self._control.Stop(control_pb2.StopRequest(reason=reason), timeout=self._timeout))

    async def _asked(self, call: Awaitable[Answer]) -> Answer:
        try:
            return await call
        except grpc.RpcError as error:
            raise error_of(self.run_id, error) from None
