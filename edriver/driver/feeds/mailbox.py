"""A bounded queue for one reader on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """First in, first out; cancelling `get` loses nothing.

    It has a limit, which writers treat differently: a message from a socket waits for room (which delays only
    that socket), the driver's own words are few by nature and are always taken.

    Args:
        limit: how many items `full` means.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._closed = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return len(self._items) >= self._limit

    def put(self, item: T) -> None:
        """Add an item, full or not; once it is closed, only while it is not full."""
        if self._closed and self.full:
            return
        self._items.append(item)
        self._arrived.set()

    async def put_when_room(self, item: T) -> None:
        """Add an item once it is not full."""
        await self.room()
        self.put(item)

    async def room(self) -> None:
        """Wait until it is not full. It stays so until the caller waits for something else."""
        while self.full and not self._closed:
            self._room.clear()
            await self._room.wait()

    async def get(self) -> T | None:
        """Wait for the next item; None once it is closed, whatever is left."""
        while not self._items and not self._closed:
            self._arrived.clear()
            await self._arrived.wait()
        if self._closed:
            return None
        item = self._items.popleft()
        self._note_room()
        return item

    def take(self, most: int) -> list[T]:
        """What waits, up to so many items, without waiting for more."""
        items = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        self._note_room()
        return items

    def _note_room(self) -> None:
        """Writers that wait go on once half of it is empty: all of them look for room then, and thousands may wait."""
        if len(self._items) <= self._limit // 2:
            self._room.set()

    def drain(self) -> list[T]:
        """All that waits, without waiting for more."""
        items = list(self._items)
        self._items.clear()
        self._room.set()
        return items

    def close(self) -> None:
        """Tell the reader that nothing more is worth reading. Writers wait no more; `drain` returns what fit."""
        self._closed = True
        self._arrived.set()
        self._room.set()
