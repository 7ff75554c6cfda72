"""Finding out where the threads of a worker stand, while it continues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from edriver.text.wire_text import wire_text
from edriver.v1 import notification_pb2, stacks_pb2

ANSWER_BOUND: Final = 1.0
"""Seconds that the worker's interpreter has to answer, and then its signal handler."""

MAX_FILE_BYTES: Final = 256 * 1024
"""Bytes of that which are read: more than a hundred threads' stacks."""

LOOK_INTERVAL: Final = 0.05
"""Seconds between two reads of the handler's output; once nothing is new, the handler has finished."""


class StackTaker:
    """Asks one worker: its interpreter first, then a signal handler in C, which needs no lock of the interpreter's, and
    py-spy where neither can answer.

    Args:
        listens: whether the worker's service does.
        stands_still: whether its process is stopped or frozen.
        deliver: passes a notice on to it.
        signal: has its signal handler write to the file.
        file: the file.
        spy: has py-spy read where it stands; returns nothing where that is not possible.
    """

    def __init__(
        self,
        listens: Callable[[], bool],
        stands_still: Callable[[], bool],
        deliver: Callable[[notification_pb2.Notice], None],
        signal: Callable[[], None],
        file: Path,
        spy: Callable[[], Awaitable[str]],
    ) -> None:
        self._listens = listens
        self._stands_still = stands_still
        self._deliver = deliver
        self._signal = signal
        self._file = file
        self._spy = spy
        self._lock = asyncio.Lock()
        self._number = 0
        self._answer: asyncio.Future[str] | None = None

    async def take(self) -> stacks_pb2.Stacks:
        """Where its threads stand, or why that is not known; a few seconds at most for each who asks."""
        async with self._lock:
            if not self._listens():
                return await self._spied(stacks_pb2.STACK_OBSTACLE_NOT_LISTENING)
            if self._stands_still():  # it would answer when it is continued
                return await self._spied(stacks_pb2.STACK_OBSTACLE_STOPPED)
            if text := await self._asked():
                return stacks_pb2.Stacks(text=text, source=stacks_pb2.STACK_SOURCE_WORKER)
            if text := await self._signalled():
                return stacks_pb2.Stacks(text=wire_text(text), source=stacks_pb2.STACK_SOURCE_SIGNAL)
            stopped = self._stands_still()
            return await self._spied(stacks_pb2.STACK_OBSTACLE_STOPPED if stopped else stacks_pb2.STACK_OBSTACLE_SILENT)

    def answered(self, answer: notification_pb2.StacksTaken) -> None:
        """The worker has answered; too late for those who asked before."""
        if self._answer is not None and not self._answer.done() and answer.number == self._number:
            self._answer.set_result(answer.stacks)

    async def _spied(self, obstacle: stacks_pb2.StackObstacle.ValueType) -> stacks_pb2.Stacks:
        """What py-spy reads; without it, why the worker does not answer."""
        if text := await self._spy():
            source = stacks_pb2.STACK_SOURCE_PY_SPY
            return stacks_pb2.Stacks(text=wire_text(text), source=source, obstacle=obstacle)
        return stacks_pb2.Stacks(obstacle=obstacle)

    async def _asked(self) -> str:
        self._number += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._deliver(notification_pb2.Notice(take_stacks=notification_pb2.TakeStacks(number=self._number)))
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._answer, ANSWER_BOUND)
        return ""

    async def _signalled(self) -> str:
        """What its handler writes; nothing if it writes nothing."""
        with suppress(OSError):  # the file does not exist, or no longer exists
            os.truncate(self._file, 0)
            self._signal()
            loop, before = asyncio.get_running_loop(), 0
            give_up_at = loop.time() + ANSWER_BOUND
            while loop.time() < give_up_at:
                await asyncio.sleep(LOOK_INTERVAL)
                size = self._file.stat().st_size
                if size and size == before:
                    break
                before = size
            with self._file.open("rb") as file:
                return file.read(MAX_FILE_BYTES).decode(errors="replace")
        return ""
