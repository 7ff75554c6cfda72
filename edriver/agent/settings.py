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
        address: where this host's workers are reached; empty: where the driver sees this agent.
        folder: private to this agent, for its sockets.
        interface: the network interface whose address that is; empty: any.
        slots: how many workers this host takes, if it dials in by itself, with agent_id 0.
        left_code: the exit code if the agent leaves a run that goes on.
        secret: authenticates this agent to the driver; empty: the first Welcome has it.
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
