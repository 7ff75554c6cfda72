"""Where the members on a host find their agent's proxy for the stores of other hosts."""

from __future__ import annotations

from typing import Final

PROXY_SOCKET: Final = "proxy.sock"
"""Its name in the agent's folder."""

PROXY_VARIABLE: Final = "EDRIVER_STORE_PROXY"
"""The variable that names its path to workers; absent: the agent has none, or is of a release without."""
