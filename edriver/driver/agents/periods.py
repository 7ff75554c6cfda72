"""How often agents send heartbeats, and in them what their workers report, by the size of the run; pure.

One event loop takes in what all agents send, so the rate at which reports arrive has a bound. Leases are the same at
any size.
"""

from __future__ import annotations

from typing import Final

from edriver.v1 import agent_pb2
from edriver.wire.conversion import duration

SMALL_RUN: Final = 50
"""Agents up to which each heartbeat comes after a second, with all that is new."""

LARGE_RUN_PERIOD: Final = 2.0
"""Seconds between two heartbeats of an agent in a larger run: two and a half fit into its lease."""

REPORTS_PER_SECOND: Final = 250
"""Reports of workers that arrive in a second, in a larger run: of 8,000 workers each reports every 32 s. Each takes the
driver some 50 microseconds."""

LONGEST_SILENCE: Final = 30
"""Seconds between two heartbeats that the driver sends an agent in a larger run, if there is nothing to acknowledge,"""

BEATS_PER_LEASE: Final = 5
"""and the number of them in the driver's lease, at least."""


def heartbeat_of(agents: int, workers: int) -> agent_pb2.Heartbeat:
    """What the driver sends each agent, in a run with so many agents and workers."""
    if agents <= SMALL_RUN:
        return agent_pb2.Heartbeat()
    progress_period = duration(workers // REPORTS_PER_SECOND)
    return agent_pb2.Heartbeat(heartbeat_period=duration(LARGE_RUN_PERIOD), progress_period=progress_period)


def silence_within(lease: float) -> int:
    """Seconds that the driver of a larger run may be silent, in whole seconds.

    Args:
        lease: seconds after which an agent gives it up.
    """
    return max(1, min(LONGEST_SILENCE, int(lease / BEATS_PER_LEASE)))
