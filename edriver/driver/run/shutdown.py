"""How agents end: one that the core lets go or that is lost, and all of them with the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.launch.agents import Agents
from edriver.model.records import Worker
from edriver.v1 import agent_pb2
from edriver.wire.conversion import duration

SHUTDOWN_GRACE: Final = 5.0
"""Seconds that workers get between SIGTERM and SIGKILL when the run ends."""

EXIT_BOUND: Final = 5.0
"""Seconds beyond the workers' grace within which an agent exits on its own."""

QUICK_EXIT_BOUND: Final = 1.0
"""The same when the operator does not want to wait."""


class Shutdown:
    """Orders agents to end, and kills those that do not.

    Args:
        registry: orders agents to end.
        agents: kills them.
        dial_in_hosts: the hosts that have dialled in; None if there are none.
        hurry: set when the operator does not want to wait.
        inbox: what agents send to the core.
    """

    def __init__(
        self,
        registry: AgentRegistry,
        agents: Agents,
        dial_in_hosts: DialInHosts | None,
        hurry: asyncio.Event,
        inbox: Mailbox[Inbound],
    ) -> None:
        self._registry = registry
        self._agents = agents
        self._dial_in_hosts = dial_in_hosts
        self._hurry = hurry
        self._inbox = inbox

    def forget_agent(self, host: str, agent_id: int) -> None:
        """An agent is lost: its messages are ignored from now on, and it is killed where possible."""
        self._registry.give_up(agent_id)
        self._agents.kill(agent_id)
        if self._dial_in_hosts is not None:
            self._dial_in_hosts.leave(host, agent_id)

    def stop_agent(self, agent_id: int) -> None:
        """End an agent whose workers have ended; kill it if it does not end."""
        if self._dial_in_hosts is not None:
            self._dial_in_hosts.dismissed(agent_id)
        if not self._registry.shut_down(agent_id, SHUTDOWN_GRACE, run_continues=True):
            self._registry.give_up(agent_id)
            self._agents.kill(agent_id)
            return
        asyncio.get_running_loop().call_later(SHUTDOWN_GRACE + EXIT_BOUND, self._agents.kill, agent_id)

    def stop_workers(self, workers: Iterable[Worker]) -> None:
        """End these workers; their agents stay, with the checkpoints in memory."""
        for worker in workers:
            stop = agent_pb2.StopWorker(worker_id=worker.worker_id, grace=duration(SHUTDOWN_GRACE))
            self._registry.send(worker.host, agent_pb2.ConnectResponse(stop_worker=stop))

    async def end(self) -> None:
        """Let the agents end their workers and themselves; in a hurry, at once. The run is over."""
        # The core takes nothing more in: with thousands of workers, agents would otherwise wait for room before they
        # can report their end.
        self._inbox.close()
        self._agents.close()
        for agent_id in self._agents.running:
            if not self._registry.shut_down(agent_id, SHUTDOWN_GRACE):
                self._registry.give_up(agent_id)  # it has no workers yet, and is refused if it comes
                self._agents.kill(agent_id)
        emptied = asyncio.create_task(self._agents.wait_until_empty())
        hurried = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait(
                {emptied, hurried}, timeout=SHUTDOWN_GRACE + EXIT_BOUND, return_when=asyncio.FIRST_COMPLETED
            )
            for agent_id in self._agents.running:
                self._registry.shut_down(agent_id, 0.0)
            await asyncio.wait({emptied}, timeout=QUICK_EXIT_BOUND)
        finally:
            emptied.cancel()
            hurried.cancel()

    async def leave_no_agent(self) -> None:
        """Kill agents that are still there, and reap them."""
        self._agents.close()
        for agent_id in self._agents.running:
            self._agents.kill(agent_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._agents.wait_until_empty(), EXIT_BOUND)
