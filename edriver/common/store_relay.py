"""Where the members on a host find their agent's relay to the stores of other hosts."""

from __future__ import annotations

from typing import Final

RELAY_SOCKET: Final = "relay.sock"
"""Its name in the agent's folder."""

RELAY_VARIABLE: Final = "EDRIVER_STORE_RELAY"
"""The variable that names its path to workers; absent: the agent has none, or is of a release without."""
