from __future__ import annotations

import asyncio

import pytest

from edriver.driver.engines.ray.agent_actor import AgentActor


def test_an_agent_that_ends_says_why() -> None:
    async def play() -> str:
        actor = AgentActor()
        await actor.start("a-node", "no join config")
        return await actor.ended()

    assert asyncio.run(play()).startswith("its agent exited with code 2: edriver-agent: error: ")


def test_an_actor_starts_one_agent() -> None:
    async def play() -> None:
        actor = AgentActor()
        await actor.start("a-node", "no join config")
        with pytest.raises(RuntimeError, match="has been started already"):
            await actor.start("a-node", "no join config")
        await actor.ended()

    asyncio.run(play())
