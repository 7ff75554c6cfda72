"""How lines of output are put together into batches on their way to the driver."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from edriver.agent.forward import BATCH_INTERVAL, MAX_BATCH_LINES, OutputForwarder
from edriver.v1 import agent_pb2


class Driver:
    """Takes batches; as the stub, and as its one call."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.done = False

    def ForwardOutput(self, **_: object) -> Driver:
        return self

    async def write(self, batch: agent_pb2.ForwardOutputRequest) -> None:
        self.batches.append([line.text for line in batch.lines])

    async def done_writing(self) -> None:
        self.done = True

    def __await__(self) -> Any:
        return asyncio.sleep(0).__await__()

    def cancel(self) -> None:
        pass


class Agent:
    """A forwarder whose pauses end when the test says so."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.pauses: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()
        self.forwarder = OutputForwarder(cast("Any", self.driver), 1, sleep=self._sleep)
        self.running = asyncio.create_task(self.forwarder.run())

    async def _sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.pauses.put_nowait((seconds, over))
        await over.wait()

    def say(self, *texts: bytes) -> None:
        for text in texts:
            self.forwarder.add(agent_pb2.OutputLine(text=text))

    async def pausing(self) -> asyncio.Event:
        """Wait until it pauses; what ends the pause."""
        seconds, over = await asyncio.wait_for(self.pauses.get(), 30)
        assert seconds == BATCH_INTERVAL
        return over


def test_lines_that_follow_one_another_closely_go_together() -> None:
    async def run() -> None:
        agent = Agent()
        agent.say(b"rank 0 at step 1")
        pause = await agent.pausing()
        assert agent.driver.batches == [[b"rank 0 at step 1"]], "the first one does not wait"
        agent.say(b"rank 1 at step 1", b"rank 2 at step 1")
        pause.set()
        (await agent.pausing()).set()
        assert agent.driver.batches[1:] == [[b"rank 1 at step 1", b"rank 2 at step 1"]]
        agent.forwarder.close()
        await asyncio.wait_for(agent.running, 30)
        assert agent.driver.done

    asyncio.run(run())


def test_full_batches_follow_one_another_without_a_pause() -> None:
    async def run() -> None:
        agent = Agent()
        agent.say(*[b"a"] * (MAX_BATCH_LINES + 1))
        await agent.pausing()
        assert [len(batch) for batch in agent.driver.batches] == [MAX_BATCH_LINES, 1]
        agent.running.cancel()

    asyncio.run(run())


def test_the_last_lines_are_not_kept_waiting() -> None:
    async def run() -> None:
        agent = Agent()
        agent.say(b"the last one")
        agent.forwarder.close()
        await asyncio.wait_for(agent.running, 30)
        assert agent.driver.batches == [[b"the last one"]]
        assert agent.pauses.empty()

    asyncio.run(run())
