"""Where a host's checkpoint server listens, in its agent's private folder."""

from __future__ import annotations

from typing import Final

SERVER_SOCKET: Final = "checkpoints.sock"
"""For the workers and the agent of the host."""

SHARDS_SOCKET: Final = "shards.sock"
"""For the servers and workers of other hosts, where all hosts of a run are one machine."""
