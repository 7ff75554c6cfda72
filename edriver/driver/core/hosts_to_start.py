"""Which hosts get an agent: those that the run can use, and some more. Part of the core."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain
from typing import Final

from edriver.driver.core.roster import Roster

SPARE_HOSTS: Final = 64
"""Hosts that have an agent beside those whose slots the run can use, so that what is lost is replaced at once."""


def hosts_to_start(roster: Roster, most: int, unusable: Container[str], now: float) -> set[str]:
    """The hosts that get an agent now. Those that have failed least go first, then the oldest.

    Args:
        roster: the hosts.
        most: most workers to be used now.
        unusable: hosts that are not counted on, whether they have an agent or not.
        now: the time.
    """
    wanted = [record for record in roster.hosts.values() if record.wanted]
    due = [record for record in wanted if record.agent_id is None and record.start.free_at <= now]
    if not due:
        return set()
    taken = [record for record in wanted if record.agent_id is not None and record.name not in unusable]
    room, spare, chosen = most, SPARE_HOSTS, set[str]()
    for record in chain(taken, sorted(due, key=lambda record: record.start.failures)):
        if room <= 0 and spare <= 0:
            break
        room, spare = (room - record.open_count, spare) if room > 0 else (room, spare - 1)
        if record.agent_id is None:
            chosen.add(record.name)
    return chosen
