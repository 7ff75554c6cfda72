"""When the pipes of workers are read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from edriver.agent.workers.pipes import FULL_READ, READ_PAUSE, Pipes

BOUND = 240.0


class Reader:
    """Two pipes, what was read of them, and the pauses, which end when the test says so."""

    def __init__(self) -> None:
        self.reads: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.pauses: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self.pipes = Pipes(self._later)
        self.ends = [os.pipe(), os.pipe()]
        for number, (fd, _) in enumerate(self.ends):
            self.pipes.add(fd, lambda fd=fd, number=number: self._read(fd, number))  # type: ignore[misc]

    def _later(self, seconds: float, resume: Callable[[], None]) -> None:
        assert seconds == READ_PAUSE
        self.pauses.put_nowait(resume)

    def _read(self, fd: int, number: int) -> int:
        data = os.read(fd, 65536)
        self.reads.put_nowait((number, data))
        if not data:
            self.pipes.remove(fd)
        return len(data)

    def write(self, number: int, data: bytes) -> None:
        os.write(self.ends[number][1], data)

    async def read(self) -> tuple[int, bytes]:
        return await asyncio.wait_for(self.reads.get(), BOUND)

    async def pause(self) -> Callable[[], None]:
        return await asyncio.wait_for(self.pauses.get(), BOUND)


def check(work: Callable[[Reader], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        reader = Reader()
        try:
            await work(reader)
        finally:
            for ends in reader.ends:
                for fd in ends:
                    os.close(fd)

    asyncio.run(run())


async def turns() -> None:
    """Let the event loop look for what is ready, several times."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_first_line_is_read_at_once_and_the_next_ones_together() -> None:
    async def work(reader: Reader) -> None:
        reader.write(0, b"step 1\n")
        assert await reader.read() == (0, b"step 1\n")
        resume = await reader.pause()
        reader.write(1, b"step 1\n")
        reader.write(0, b"step 2\n")
        await turns()
        assert reader.reads.empty()
        resume()
        assert sorted([await reader.read(), await reader.read()]) == [(0, b"step 2\n"), (1, b"step 1\n")]
        await reader.pause()
        assert reader.pauses.empty()

    check(work)


def test_what_has_come_during_a_pause_is_read_without_waiting_for_it() -> None:
    async def work(reader: Reader) -> None:
        reader.write(0, b"step 1\n")
        await reader.read()
        resume = await reader.pause()
        reader.write(0, b"step 2\n")
        resume()
        assert reader.reads.get_nowait() == (0, b"step 2\n")
        assert reader.pauses.qsize() == 1

    check(work)


def test_after_a_pause_in_which_nothing_came_a_line_is_read_at_once() -> None:
    async def work(reader: Reader) -> None:
        reader.write(0, b"step 1\n")
        await reader.read()
        (await reader.pause())()
        await turns()
        assert reader.pauses.empty()
        reader.write(0, b"step 2\n")
        assert await reader.read() == (0, b"step 2\n")

    check(work)


def test_what_writes_a_lot_is_not_kept_waiting() -> None:
    async def work(reader: Reader) -> None:
        reader.write(0, b"x" * FULL_READ)
        assert await reader.read() == (0, b"x" * FULL_READ)
        assert reader.pauses.empty()
        reader.write(1, b"more\n")
        assert await reader.read() == (1, b"more\n")

    check(work)


def test_a_pipe_that_has_ended_is_left_alone() -> None:
    async def work(reader: Reader) -> None:
        fd, writing = reader.ends.pop(0)
        os.close(writing)
        assert await reader.read() == (0, b"")
        os.close(fd)
        reader.pipes.remove(fd)  # once more
        await turns()
        assert reader.pauses.empty()
        assert reader.reads.empty()
        os.write(reader.ends[0][1], b"the other\n")
        assert await reader.read() == (1, b"the other\n")

    check(work)
