"""What an agent is launched with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """An agent's settings.

    Attributes:
        run_id: the run.
        host: the name under which discovery knows this host.
        agent_id: names this agent to the driver.
        address: the address of this host's workers; empty: the address from which the driver sees this agent.
        folder: a private folder for this agent's sockets.
        interface: the network interface whose address that is; empty: any.
        slots: the number of workers that this host takes, if it dials in, with agent_id 0.
        left_code: the exit code if the agent leaves a run that continues.
        secret: authenticates this agent to the driver; empty: the first Welcome carries it.
    """

    run_id: str
    host: str
    agent_id: int
    address: str
    folder: Path
    interface: str = ""
    slots: int = 0
    left_code: int = 0
    secret: bytes = field(default=b"", repr=False)
