"""What an agent is launched with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edriver.common.join_config import GRACE

END_TIME: Final = 10.0
"""Seconds of a host's grace, or half of it if that is less, that an agent keeps for ending its workers and itself."""


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
        grace: seconds that this host stays after SIGTERM or SIGUSR1 to the agent.
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
    grace: float = GRACE

    @property
    def leave_timeout(self) -> float:
        """Seconds of the grace in which the driver may drain the workers, before the agent ends them."""
        return max(self.grace - END_TIME, self.grace / 2)
