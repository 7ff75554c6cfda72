"""When pipes are read: at once where they were quiet, then none for a while, and without a pause what is full."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edriver.agent.workers.pipes import FULL_READ, READ_PAUSE, Pipes


class Reader:
    """Two pipes whose pauses a test ends."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.pauses: list[float] = []
        self.ends = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
        self.end_pause: Callable[[], None] = lambda: None
        self.paused = asyncio.Event()
        self.has_read = asyncio.Event()
        self._pipes = Pipes(self._pause)
        for end, _ in self.ends:
            self._pipes.add(end, lambda end=end: self._read(end))  # type: ignore[misc]

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        self.pauses.append(seconds)
        self.end_pause = then
        self.paused.set()

    def _read(self, end: int) -> int:
        data = os.read(end, 65536)
        if not data:
            self._pipes.remove(end)
        self.read.append(data)
        self.has_read.set()
        return len(data)

    def write(self, data: bytes, pipe: int = 0) -> None:
        os.write(self.ends[pipe][1], data)

    def shut(self, pipe: int) -> None:
        os.close(self.ends[pipe][1])


@contextmanager
def open_reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    for end, _ in reader.ends:
        os.close(end)


def test_what_comes_during_a_pause_is_read_together_at_its_end() -> None:
    async def play() -> None:
        with open_reader() as reader:
            reader.write(b"first")
            await asyncio.wait_for(reader.paused.wait(), 60)
            reader.write(b"second")
            reader.write(b"third", pipe=1)
            for _ in range(10):
                await asyncio.sleep(0)
            assert reader.read == [b"first"]
            assert reader.pauses == [READ_PAUSE]
            reader.end_pause()
            assert sorted(reader.read) == [b"first", b"second", b"third"]
            assert reader.pauses == [READ_PAUSE] * 2

    asyncio.run(play())


def test_after_a_pause_in_which_nothing_came_a_line_is_read_at_once() -> None:
    async def play() -> None:
        with open_reader() as reader:
            reader.write(b"first")
            await asyncio.wait_for(reader.paused.wait(), 60)
            reader.paused.clear()
            reader.end_pause()
            assert not reader.paused.is_set()
            reader.write(b"second")
            await asyncio.wait_for(reader.paused.wait(), 60)
            assert reader.read == [b"first", b"second"]

    asyncio.run(play())


def test_a_pipe_that_is_full_is_read_on_without_a_pause() -> None:
    async def play() -> None:
        with open_reader() as reader:
            reader.write(b"a" * FULL_READ)
            await asyncio.wait_for(reader.has_read.wait(), 60)
            assert reader.pauses == []
            reader.has_read.clear()
            reader.write(b"b" * FULL_READ)
            await asyncio.wait_for(reader.has_read.wait(), 60)
            assert reader.pauses == []

    asyncio.run(play())


def test_the_end_of_one_pipe_leaves_the_other() -> None:
    async def play() -> None:
        with open_reader() as reader:
            reader.shut(0)
            await asyncio.wait_for(reader.has_read.wait(), 60)
            assert reader.pauses == []
            reader.write(b"on", pipe=1)
            await asyncio.wait_for(reader.paused.wait(), 60)
            assert reader.read == [b"", b"on"]

    asyncio.run(play())
