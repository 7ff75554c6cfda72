"""When the agents of a large run send their heartbeats."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from edriver.agent.heartbeat_times import GROUPS, SHORTEST, until_next
from edriver.driver.agents.periods import LARGE_RUN_PERIOD
from edriver.driver.agents.registry import AGENT_LEASE

PERIOD = LARGE_RUN_PERIOD


def moments(agent_id: int, since: float, count: int) -> list[float]:
    """When an agent that begins then sends its first heartbeats."""
    found, now = [], since
    for _ in range(count):
        now += until_next(now, PERIOD, agent_id)
        found.append(now)
    return found


def test_agents_of_a_group_send_theirs_at_the_same_moments_whenever_they_begin() -> None:
    group = [moments(3 + GROUPS * n, 1000.0 + 0.137 * n, 20)[-10:] for n in range(12)]
    heard = Counter(round(at, 3) for each in group for at in each)
    assert sum(count == len(group) for count in heard.values()) >= 9  # they begin within one period


def test_groups_are_spread_over_a_period() -> None:
    first = sorted(moments(agent_id, 1000.0, 2)[1] % PERIOD for agent_id in range(GROUPS))
    assert first == pytest.approx([n * PERIOD / GROUPS for n in range(GROUPS)])


@pytest.mark.parametrize("agent_id", [0, 1, 7, 999])
def test_one_follows_the_other_after_a_period(agent_id: int) -> None:
    found = moments(agent_id, 1000.3, 50)
    assert all(later - earlier == pytest.approx(PERIOD) for earlier, later in pairwise(found))


@pytest.mark.parametrize("early", [-0.01, -1e-9, 0.0, 1e-9, 0.01])
def test_a_timer_that_is_a_little_early_or_late_adds_no_heartbeat(early: float) -> None:
    moment = moments(5, 1000.0, 2)[1]
    assert until_next(moment + early, PERIOD, 5) == pytest.approx(PERIOD - early)


def test_two_fit_into_a_lease_whenever_the_first_is() -> None:
    longest = max(until_next(1000.0 + n / 1000, PERIOD, 2) for n in range(4000))
    assert longest < (1 + SHORTEST) * PERIOD
    assert 2 * longest < AGENT_LEASE
