"""A bounded queue: writers that wait go on once half of it is empty, all of them at once."""

from __future__ import annotations

import asyncio

from edriver.driver.feeds.mailbox import Mailbox


def test_writers_wait_until_half_is_empty_and_lose_nothing() -> None:
    async def work() -> None:
        mailbox: Mailbox[int] = Mailbox(4)
        for number in range(4):
            mailbox.put(number)
        writing = [asyncio.create_task(mailbox.put_when_room(number)) for number in (4, 5, 6)]
        await asyncio.sleep(0)
        assert await mailbox.get() == 0
        await asyncio.sleep(0)
        assert not any(task.done() for task in writing)
        assert mailbox.take(1) == [1]
        await asyncio.wait_for(writing[0], 30)
        taken = [await asyncio.wait_for(mailbox.get(), 30) for _ in range(5)]
        assert taken == [2, 3, 4, 5, 6]

    asyncio.run(work())


def test_a_closed_one_keeps_no_writer_waiting() -> None:
    async def work() -> None:
        mailbox: Mailbox[int] = Mailbox(1)
        mailbox.put(1)
        writing = asyncio.create_task(mailbox.put_when_room(2))
        await asyncio.sleep(0)
        mailbox.close()
        await asyncio.wait_for(writing, 30)
        assert mailbox.drain() == [1], "there was no room for the other"
        mailbox.put(3)
        assert mailbox.drain() == [3]

    asyncio.run(work())
