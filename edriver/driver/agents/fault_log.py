"""What agents do wrong, in the log: each fault once."""

from __future__ import annotations

import logging
from typing import Final

from edriver.driver.agents.agent_identity import AgentIdentity

_log = logging.getLogger("edriver.driver")

MAX_LOGGED_FAULTS: Final = 1000
"""Faults of agents that are logged; a run has a handful, and a broken agent could think of ever new ones."""


class FaultLog:
    """Logs faults of agents, each once, and not more than MAX_LOGGED_FAULTS."""

    def __init__(self) -> None:
        self._warned_of: set[int] = set()
        self._logged: set[str] = set()

    def leave_out(self, identity: AgentIdentity, text: str) -> None:
        """Log an unauthorized message of an agent, the first time."""
        if identity.agent_id not in self._warned_of:
            self._warned_of.add(identity.agent_id)
            self.warn_once(f"{text}: that is left out")

    def complain(self, host: str, text: str) -> None:
        """Log why a connection of a host's agent was closed, once."""
        self.warn_once(f"closed a connection of host {host}: {text}")

    def warn_once(self, text: str) -> None:
        """Log a warning, unless it was logged before."""
        if text not in self._logged and len(self._logged) < MAX_LOGGED_FAULTS:
            self._logged.add(text)
            _log.warning("%s", text)
