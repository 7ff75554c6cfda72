from __future__ import annotations

import asyncio

import pytest

from edriver.driver.engines.ray import agent_actor
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


def test_an_agent_does_not_inherit_what_ray_sets_for_its_own_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OF_THE_NODE", "4")
    command = ["sh", "-c", "exit ${OMP_NUM_THREADS:-0}${OF_THE_NODE:-0}"]
    monkeypatch.setattr(agent_actor, "agent_command", lambda _: command)

    async def play() -> str:
        actor = AgentActor()
        await actor.start("a-node", "no join config")
        return await actor.ended()

    assert asyncio.run(play()) == "its agent exited with code 4"
