"""How many standbys each host is to have: processes that wait to become workers. Decides nothing. Part of the core."""

from __future__ import annotations

from collections.abc import Mapping

from edriver.driver.core.membership import Membership

DEFAULT_STANDBYS = 1
"""The standbys of a host in elastic mode: workers are lost one by one, as a rule, and another one boots meanwhile."""


def standbys_of(run: Membership, wanted: int | None) -> Mapping[str, int] | None:
    """How many standbys each host may have at most; none on those that are to be left.

    Args:
        run: the run.
        wanted: number of standbys of each host; None: DEFAULT_STANDBYS, in restart mode one for each slot.

    Returns:
        the numbers by host; None: no round runs, so what there is may be needed in a moment.
    """
    if run.round is None or not run.round.running:
        return None
    elastic = run.settings.mode.members_survive
    most = DEFAULT_STANDBYS if wanted is None and elastic else wanted
    return {
        record.name: record.open_count if most is None else min(most, record.open_count)
        for record in run.roster.hosts.values()
        # In restart mode a standby waits for the place of a worker; a host without workers would start from none.
        if record.wanted and (elastic or any(run.roster.on(record.name)))
    }
