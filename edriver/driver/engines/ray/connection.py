"""The driver's side of the bridge: starts it, asks it, hears what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from edriver.driver.launch.watched import MAX_STDERR_LINES, WatchedProcess
from edriver.system.child import Child
from edriver.system.runs import RUN_FOLDER_VARIABLE
from edriver.text.phrases import exit_text

_log = logging.getLogger("edriver.driver")

MAX_LINE_BYTES: Final = 64 * 1024 * 1024

RETRY_PAUSE: Final = 10.0
"""Seconds between two attempts to connect: each imports Ray, which takes a processor for a second or more."""


class RayError(Exception):
    """Ray did not do what it was asked; the message is a sentence for the operator."""


class UnreachableError(RayError):
    """The cluster does not exist."""


class RayConnection:
    """The connection to one cluster: the first call opens it, and after a loss the next call opens it again.

    Args:
        address: the address of the cluster.
        ended: called with an agent's ID and the reason why it has ended.

    Attributes:
        number: the number of times that it was opened.
    """

    def __init__(self, address: str, ended: Callable[[int, str], None]) -> None:
        self._address = address
        self._ended = ended
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._opening: asyncio.Task[_Bridge] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._bridge: _Bridge | None = None
        self._refusal: RayError | None = None
        self._refused_at = 0.0
        self.number = 0

    @property
    def open(self) -> bool:
        """Whether a bridge is connected."""
        return self._bridge is not None

    async def call(self, name: str, **arguments: Any) -> Any:
        """Send a request to the bridge; returns its answer.

        Raises:
            UnreachableError: the cluster does not exist.
            RayError: Ray refuses, or the connection was lost.
        """
        bridge = self._bridge or await self._opened()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            bridge.send({"id": number, "call": name, **arguments})
            return await answer
        finally:
            del self._answers[number]

    async def close(self) -> None:
        """Have the bridge leave Ray; returns once it has ended."""
        if self._opening is not None:
            self._opening.cancel()
        if self._bridge is not None:
            self._bridge.hang_up()
            await self._bridge.process.gone.wait()  # bounded by the bridge itself
        if self._reading is not None:
            await self._reading

    async def _opened(self) -> _Bridge:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Bridge:
        now = asyncio.get_running_loop().time()
        if self._refusal is not None and now < self._refused_at + RETRY_PAUSE:
            self._opening = None
            raise self._refusal
        bridge = _Bridge(self._address)
        try:
            await bridge.open()
        except BaseException as error:
            bridge.hang_up()
            bridge.process.kill()
            if isinstance(error, RayError):
                self._refusal, self._refused_at = error, now
            raise
        finally:
            self._opening = None
        self._bridge = bridge
        self.number += 1
        self._reading = asyncio.create_task(self._read(bridge))
        return bridge

    async def _read(self, bridge: _Bridge) -> None:
        async for message in bridge:
            if "ended" in message:
                self._ended(message["ended"], message["reason"])
            elif (answer := self._answers.get(message["id"])) is not None and not answer.done():
                if "error" in message:
                    answer.set_exception(RayError(message["error"]))
                else:
                    answer.set_result(message["result"])
        self._bridge = None
        bridge.hang_up()
        await bridge.process.gone.wait()
        await bridge.hung_up()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RayError(f"the connection to Ray was lost: {bridge.end_text}"))


class _Bridge:
    """A bridge process, and the socket to it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, address: str) -> None:
        self.end_text = ""
        self._address = address
        self._lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._socket, theirs = socket.socketpair()
        # Not the run's mark, by which all that is left of the run is killed: it has to take back what it has asked for.
        inherited = {name: value for name, value in os.environ.items() if name != RUN_FOLDER_VARIABLE}
        command = [sys.executable, "-P", "-m", "edriver.driver.engines.ray.bridge", str(theirs.fileno()), address]
        with theirs:
            child = Child(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                environment=inherited,
                inherited=(theirs.fileno(),),
            )
        self.process = WatchedProcess(child, self._note_end, self._lines.append)

    async def open(self) -> None:
        """Wait until it is connected to the cluster.

        Raises:
            UnreachableError: the cluster does not exist.
            RayError: the connection failed otherwise.
        """
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=MAX_LINE_BYTES)
        message: dict[str, Any] = await anext(aiter(self), {})
        if refused := message.get("refused"):
            raise UnreachableError(f"there is no Ray cluster at {self._address}: {refused}")
        if not message:
            await self.process.gone.wait()
            if any("No module named 'ray'" in line for line in self._lines):
                raise UnreachableError("Ray is not installed here: pip install 'edriver[ray]'")
            raise RayError(f"the connection to Ray at {self._address} failed: {self.end_text}")

    def send(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        """It leaves Ray then, and ends."""
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.close()

    async def hung_up(self) -> None:
        """Wait until its socket has been closed."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def __aiter__(self) -> _Bridge:
        return self

    async def __anext__(self) -> dict[str, Any]:
        assert self._reader is not None
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            line = b""
        if not line:
            raise StopAsyncIteration
        message: dict[str, Any] = json.loads(line)
        return message

    def _note_end(self, code: int) -> None:
        last = next((line for line in reversed(self._lines) if line.strip()), "")
        self.end_text = f"its client {exit_text(code)}" + (f": {last[:300]}" if last else "")
