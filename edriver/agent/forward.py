"""Forwards the workers' output to the driver: buffered within bounds, sent in batches."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc.aio

from edriver.v1 import agent_pb2, agent_pb2_grpc
from edriver.wire.grpc_streams import StreamBrokenError, stream_errors

MAX_BUFFER_LINES = 10_000
MAX_BUFFER_BYTES = 8 * 1024 * 1024
"""Maximum output that waits for the driver; what exceeds it is dropped and counted."""

MAX_BATCH_LINES = 200
MAX_BATCH_BYTES = 64 * 1024
"""When a batch is full."""


class OutputBuffer:
    """Lines that wait to be sent. Pure."""

    def __init__(self) -> None:
        self._lines: deque[agent_pb2.OutputLine] = deque()
        self._bytes = 0
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._lines or self._dropped)

    def add(self, line: agent_pb2.OutputLine) -> None:
        """One more line; dropped if the buffer is full."""
        if len(self._lines) >= MAX_BUFFER_LINES or self._bytes + len(line.text) > MAX_BUFFER_BYTES:
            self._dropped += 1
            return
        self._lines.append(line)
        self._bytes += len(line.text)

    def take(self, agent_id: int, secret: bytes = b"") -> agent_pb2.ForwardOutputRequest:
        """Take the next batch out: at least one line if there is one."""
        batch = agent_pb2.ForwardOutputRequest(agent_id=agent_id, dropped=self._dropped, secret=secret)
        self._dropped = 0
        size = 0
        while self._lines and len(batch.lines) < MAX_BATCH_LINES and size + len(self._lines[0].text) <= MAX_BATCH_BYTES:
            line = self._lines.popleft()
            size += len(line.text)
            self._bytes -= len(line.text)
            batch.lines.append(line)
        return batch


class OutputForwarder:
    """Sends lines to the driver, each batch as soon as the driver has taken the previous one.

    A broken stream is opened again. Lines that it had taken and not delivered are lost: output does not justify a
    protocol of acknowledgements, and files have all of it.

    Attributes:
        taken: the number of batches that streams have taken.
    """

    def __init__(self, stub: agent_pb2_grpc.AgentServiceAsyncStub, agent_id: int, secret: bytes = b"") -> None:
        self._stub = stub
        self.agent_id = agent_id
        self.secret = secret
        self._buffer = OutputBuffer()
        self._changed = asyncio.Event()
        self._closing = False
        self.taken = 0

    def add(self, line: agent_pb2.OutputLine) -> None:
        """Send a line."""
        self._buffer.add(line)
        self._changed.set()

    def close(self) -> None:
        """Close to further lines: `run` ends when the waiting ones have been delivered."""
        self._closing = True
        self._changed.set()

    async def run(self) -> None:
        """Send what comes, until `close`."""
        unsent: agent_pb2.ForwardOutputRequest | None = None
        while unsent is not None or await self._some():
            call = self._stub.ForwardOutput(wait_for_ready=True)
            try:
                with stream_errors():
                    while unsent is not None or await self._some():
                        unsent = unsent if unsent is not None else self._buffer.take(self.agent_id, self.secret)
                        await call.write(unsent)
                        unsent = None
                        self.taken += 1
                    await self._end(call)
            except StreamBrokenError:
                await asyncio.sleep(0.1)  # a driver that refuses at once is not to be asked in a tight loop
            finally:
                call.cancel()

    async def _some(self) -> bool:
        """Wait until there is something to send; False: there will be nothing."""
        while not self._buffer:
            if self._closing:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    @staticmethod
    async def _end(
        call: grpc.aio.StreamUnaryCall[agent_pb2.ForwardOutputRequest, agent_pb2.ForwardOutputResponse],
    ) -> None:
        await call.done_writing()
        await call
