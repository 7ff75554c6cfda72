"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio
import tenacity

from edriver.client import core
from edriver.client.addresses import Address
from edriver.client.core import ANSWER_TIMEOUT, Calls, Core, channel_to
from edriver.client.errors import RunError
from edriver.client.redial import Watching
from edriver.client.requester import own_name
from edriver.v1 import control_pb2, resources_pb2, status_pb2

Answer = TypeVar("Answer")


class AsyncClient:
    """The methods of Client for asyncio. Create it within a running event loop.

    Args:
        address: the address of the run's driver: see `here` and `elsewhere`.
        timeout: the seconds that the driver may take to answer; watches have no time limit.
        requester: the operator's name in the run's events; None: this process's user and machine (alice@login1).
    """

    def __init__(self, address: Address, timeout: float = ANSWER_TIMEOUT, requester: str | None = None) -> None:
        self._channel = channel_to(address, grpc.aio.insecure_channel, grpc.aio.secure_channel)
        self._core = Core(address, timeout, self._channel)
        self._requester = own_name() if requester is None else requester
        self.run_id = address.run_id

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Close the connection, which ends all watches."""
        await self._channel.close()

    # ---- looking ---------------------------------------------------------------------------------------------

    async def status(self) -> status_pb2.Run:
        """See Client.status."""
        return await self._do(core.status())

    async def snapshot(self) -> status_pb2.GetRunResponse:
        """See Client.snapshot."""
        return await self._do(core.snapshot())

    async def rounds(self, limit: int = 0) -> list[status_pb2.Round]:
        """See Client.rounds."""
        return await self._do(core.rounds(limit))

    async def progress_history(self) -> list[status_pb2.ProgressSample]:
        """See Client.progress_history."""
        return await self._do(core.progress_history())

    async def usage_history(self) -> list[resources_pb2.UsageSample]:
        """See Client.usage_history."""
        return await self._do(core.usage_history())

    async def events(self, since: int = 0) -> list[status_pb2.Event]:
        """See Client.events."""
        return await self._do(core.events(since))

    async def watch(self, since: int = 0) -> AsyncIterator[status_pb2.Event]:
        """See Client.watch."""
        async for response in self._watch(since, progress=False):
            yield response.event

    def watch_progress(self, since: int = 0) -> AsyncIterator[status_pb2.WatchResponse]:
        """See Client.watch_progress."""
        return self._watch(since, progress=True)

    async def _watch(self, since: int, progress: bool) -> AsyncIterator[status_pb2.WatchResponse]:
        watching = Watching(since, progress)
        with self._core.errors_in_words():
            async for attempt in tenacity.AsyncRetrying(**watching.policy):
                with attempt:
                    async for response in self._core.methods["Watch"](watching.request):
                        for part in watching.parts_of(response):
                            yield part
                            if watching.over:
                                return

    async def output(
        self,
        rank: int | None = None,
        host: str = "",
        slot: int | None = None,
        worker_id: int = 0,
        since: int = 0,
        lines: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[status_pb2.WorkerLine]:
        """See Client.output."""
        request = core.output(rank, host, slot, worker_id, since, lines, follow)
        with self._core.errors_in_words():
            async for response in self._core.methods["ReadOutput"](request):
                for line in response.lines:
                    yield line

    async def stacks(
        self, rank: int | None = None, host: str = "", slot: int | None = None, worker_id: int = 0
    ) -> AsyncIterator[status_pb2.ReadStacksResponse]:
        """See Client.stacks."""
        with self._core.errors_in_words():
            async for response in self._core.methods["ReadStacks"](core.stacks(rank, host, slot, worker_id)):
                yield response

    # ---- steering --------------------------------------------------------------------------------------------

    async def drain(self, host: str, slot: int | None = None, reason: str = "", within: float | None = None) -> int:
        """See Client.drain."""
        return await self._do(core.drain(host, slot, reason, within, self._requester))

    async def preview_drain(
        self, host: str, slot: int | None = None, within: float | None = None
    ) -> control_pb2.PreviewDrainResponse:
        """See Client.preview_drain."""
        return await self._do(core.preview_drain(host, slot, within))

    async def undrain(self, host: str, slot: int | None = None) -> None:
        """See Client.undrain."""
        await self._do(core.undrain(host, slot, self._requester))

    async def resize(self, size: int) -> None:
        """See Client.resize."""
        await self._do(core.resize(size, self._requester))

    async def save_checkpoint(self) -> control_pb2.SaveCheckpointResponse:
        """See Client.save_checkpoint."""
        return await self._do(core.save_checkpoint(self._requester))

    async def stop(self, reason: str = "") -> None:
        """See Client.stop."""
        await self._do(core.stop(reason, self._requester))

    async def check_may_steer(self) -> None:
        """See Client.check_may_steer."""
        try:
            await self._do(core.check_may_steer())
        except RunError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:  # no host has an empty name
                raise

    async def _do(self, calls: Calls[Answer]) -> Answer:
        answer = None
        while True:
            try:
                call = calls.send(answer)
            except StopIteration as end:
                returned: Answer = end.value
                return returned
            with self._core.errors_in_words():
                answer = await self._core.begin(call)
