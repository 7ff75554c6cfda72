"""The seam for starting agents: what a launcher does, and what it is given. Only `agents.py` uses one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from edriver.discovery.sources import HostSource

LAUNCHER_ENTRY_POINTS: Final = "edriver.launchers"
"""The entry points of launchers: each names a callable that takes a LaunchContext and returns a Launcher."""


class AgentLaunchError(Exception):
    """An agent cannot be started. The message is a sentence for the operator: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a launcher needs to start one agent.

    Attributes:
        agent_id: the agent's number, which no other agent of the run has.
        join_config: writes what the agent reads on standard input. It holds secrets: keep it off command lines, out of
            files that others can read, and out of logs.
        ended: call it once, in the event loop, when you see that the agent has ended; the text says why. Further calls
            are ignored.
        connected: set once the agent has connected.
    """

    agent_id: int
    join_config: Callable[[], Awaitable[bytes]]
    ended: Callable[[str], None]
    connected: asyncio.Event = field(default_factory=asyncio.Event)


class Launcher(Protocol):
    """Starts and stops agents: one object for a run, used in the driver's event loop alone."""

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Start an agent on a host; return once it has been started. It then has 30 s to connect.

        Up to 64 calls run at a time. A cancelled call must leave nothing behind.

        Raises:
            AgentLaunchError: the agent cannot be started, with the reason.
            OSError: the agent cannot be started, with the operating system's reason.
        """
        ...

    async def stop(self, agent_id: int, /) -> None:
        """Kill an agent that has not ended when ordered to. It is not an error if it has ended."""
        ...

    def watches(self, agent_id: int, /) -> bool:
        """Whether `ended` will be called when that agent ends. If not, its last message to the driver is its end."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a launcher is made from.

    Attributes:
        run_id: the run.
        ssh_port: on which port sshd listens, on all hosts; None: as configured.
        ssh_identity_file: the private key for ssh; empty: as configured.
        admit: admits the agent of a host that has dialled in; returns whether there is one. None: no hosts
            dial in.
        source: the run's host source, for a launcher that comes with it.
    """

    run_id: str
    ssh_port: int | None = None
    ssh_identity_file: str = ""
    admit: Callable[[str, int], bool] | None = None
    source: HostSource | None = None


def agent_command(host: str) -> list[str]:
    """What starts an agent, if edriver is at the same path there as here; it reads its join config on standard
    input.
    """
    # -P: not what lies in the user's folder
    return [sys.executable, "-P", "-m", "edriver.agent.main", "--host", host]
