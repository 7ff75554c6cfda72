"""When an agent of a large run sends its heartbeats: at the same moments as others; pure.

A message that arrives alone wakes the driver's threads several times. Those of a hundred agents that arrive together
take it a third of that each. So the moments follow from the run's clock, which all hosts share, and from the agent's
ID. A host whose clock is off by a fraction of a second sends its heartbeats as often, only not together with others.
"""

from __future__ import annotations

from typing import Final

GROUPS: Final = 4
"""Moments in a period, one for each group of agents: all of a thousand at once would keep others waiting at the
driver."""

SHORTEST: Final = 0.1
"""The part of a period that lies between two heartbeats at least: a timer may be a little early."""


def until_next(now: float, period: float, agent_id: int) -> float:
    """Seconds until the next heartbeat, from SHORTEST of a period to that and one period.

    Args:
        now: the run's time, in seconds since the epoch.
        period: seconds between two heartbeats.
        agent_id: whose heartbeats they are.
    """
    since_moment = (now - agent_id % GROUPS / GROUPS * period) % period
    wait = period - since_moment
    return wait if wait >= SHORTEST * period else wait + period
