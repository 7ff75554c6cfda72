"""Agents in pods: the cluster starts them, and the driver lets them in; the end of a pod is the end of its agent."""

from __future__ import annotations

from collections.abc import Callable

from edriver.driver.engines.kubernetes.hosts import KubernetesHosts
from edriver.driver.launch.launcher import AgentLaunchError, Bootstrap, LaunchContext


class KubernetesLauncher:
    """Lets in agents that have dialled in from their pods.

    Args:
        admit: admits a host's agent; returns whether there is one.
    """

    def __init__(self, admit: Callable[[str, int], bool]) -> None:
        self._admit = admit
        self._agents: dict[str, Bootstrap] = {}

    @classmethod
    def of(cls, context: LaunchContext) -> KubernetesLauncher:
        """The launcher of a run with --kubernetes.

        Raises:
            AgentLaunchError: its hosts do not dial in, or come from elsewhere.
        """
        if context.admit is None or not isinstance(context.source, KubernetesHosts):
            raise AgentLaunchError("it works only with the hosts of --kubernetes KIND/NAME")
        made = cls(context.admit)
        context.source.watch_ends(made.ended)
        return made

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Let it in.

        Raises:
            AgentLaunchError: none waits.
        """
        if not self._admit(host, bootstrap.agent_id):
            raise AgentLaunchError("it has not dialled in again")
        self._agents[host] = bootstrap
        bootstrap.connected.set()

    async def stop(self, agent_id: int, /) -> None:
        """The agent ends on its own when the driver refuses it."""
        self._agents = {host: each for host, each in self._agents.items() if each.agent_id != agent_id}

    def watches(self, _: int, /) -> bool:
        """The API server may be gone, and a StatefulSet's pods are not told apart: its last message is its end, too."""
        return False

    def ended(self, host: str, reason: str) -> None:
        """The host's pod has ended."""
        if bootstrap := self._agents.pop(host, None):
            bootstrap.ended(reason)
