"""What must not be trained on: states that claim to be equal and are not, and rounds that break without a loss."""

from __future__ import annotations

from collections.abc import Iterable

from edriver.driver.roster import Roster, Worker
from edriver.driver.round import Round
from edriver.driver.words import worker_text
from edriver.version import NO_VERSION, Version

STATE_LOST = "every worker that held the state of the run is gone"
"""Why a run ends rather than start from scratch behind its user's back."""


def disagreement(waiting: Iterable[Worker], version: Version) -> str | None:
    """What holders of one version say differently about their state; None if they agree."""
    said: dict[str, Worker] = {}
    for worker in waiting:
        assert worker.offer is not None
        if worker.offer.version == version != NO_VERSION:
            said.setdefault(worker.offer.digest, worker)
    if len(said) < 2:
        return None
    values = "; ".join(f"{worker_text(worker)} has {digest}" for digest, worker in said.items())
    return (
        f"workers that hold the same version {version} disagree about the state: {values}. Attributes of the state "
        "must be equal on all ranks; keep what differs out of it"
    )


class BreakageWatch:
    """Notices rounds that end by raised collectives, one after the other, with nobody lost and nothing gained.

    Such a thing does not go away by itself: unequal shapes, a bad link between two hosts that both live.
    """

    def __init__(self) -> None:
        """Nothing has broken yet."""
        self._in_a_row = 0

    def clear(self) -> None:
        """A round ended well."""
        self._in_a_row = 0

    def hopeless(self, ended: Round | None, version: Version, roster: Roster) -> str | None:
        """Why the next round would only break again; None if there is hope.

        Args:
            ended: the round that has just ended.
            version: the highest version offered for the next one.
            roster: to name workers by.
        """
        if ended is None or ended.abort_cause is None:
            return None
        if not ended.raised or ended.lost or ended.members:
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        if self._in_a_row < 2 or version > Version(ended.plan.round_id, 0):
            return None
        raised = [(roster.workers[w], text) for w, text in sorted(ended.raised.items()) if w in roster.workers]
        tracebacks = "\n".join(f"{worker_text(worker)}:\n{text}" for worker, text in raised)
        return (
            f"collectives failed in two rounds in a row at version {ended.plan.version} with no worker lost (unequal "
            f"shapes or a bad link?):\n{tracebacks}"
        )
