"""Agents that something else has started, and that wait for admission: to start one is to admit it."""

from __future__ import annotations

from collections.abc import Callable

from edriver.driver.launch.launcher import AgentLaunchError, Bootstrap, LaunchContext


class DialInLauncher:
    """Lets in agents that have dialled in on their own.

    Args:
        admit: admits a host's agent; returns whether there is one.
    """

    def __init__(self, admit: Callable[[str, int], bool]) -> None:
        self._admit = admit

    @classmethod
    def of(cls, context: LaunchContext) -> DialInLauncher:
        """The launcher of a run."""
        assert context.admit is not None, "config/options.py sees to it"
        return cls(context.admit)

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Let it in.

        Raises:
            AgentLaunchError: none waits.
        """
        if not self._admit(host, bootstrap.agent_id):
            raise AgentLaunchError("it has not dialled in again")
        bootstrap.connected.set()

    async def stop(self, _: int, /) -> None:
        """The agent ends on its own when the driver refuses it."""

    def watches(self, _: int, /) -> bool:
        """Nothing of it can be seen from here."""
        return False
