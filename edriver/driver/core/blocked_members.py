"""Uneven steps: some members of a round have made their last one, others wait in a collective for them. Pure.

In restart mode there is another such end: the scripts of some have run to their end, those of others stand still.

Nothing that a member does can help then: one that is done, or has stopped at the agreed boundary, calls no further
collective of the round. As long as one other member still computes, the wait may be for that one, and its own limit
applies (an evaluation of rank 0 may last an hour). Once all that are left wait, the round is only a matter of time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edriver.model.cause import StepGroup, UnevenSteps, WorkerName

REPORT_DELAY: Final = 7.0
"""Seconds of waiting after which it is reported, so that a slow last step on one host causes no line."""

MAX_NAMED_WORKERS: Final = 3
"""Workers that are named one by one; further ones are counted."""


class UnevenState(NamedTuple):
    """Members that wait for others that are done.

    Attributes:
        steps: who is done and who waits, with the boundaries that each has passed.
        since: since when they wait.
        unresolvable: whether no member is left that they could rightly wait for.
    """

    steps: UnevenSteps
    since: float
    unresolvable: bool


@dataclass(slots=True)
class BlockedMembers:
    """The members of a round that wait in a collective.

    Attributes:
        blocked: the time since which a member waits and the number of boundaries it has passed, by worker_id.
        idle: in restart mode, the time since which a member's script is idle, by worker_id.
        waits_from: when the last member finished that calls no further collective; None: no member has finished.
    """

    blocked: dict[int, tuple[float, int]] = field(default_factory=dict)
    idle: dict[int, float] = field(default_factory=dict)
    waits_from: float | None = None

    def note(self, worker_id: int, since: float, boundaries: int, seconds: float) -> None:
        """A member waits in a collective or, with 0 seconds, continues."""
        if seconds > 0:
            self.blocked[worker_id] = (since, boundaries)
        else:
            self.blocked.pop(worker_id, None)

    def note_idle(self, worker_id: int, now: float, seconds: float) -> None:
        """A member's script has stood still for so long; with 0 seconds, it continues."""
        if seconds > 0:
            self.idle[worker_id] = now - seconds
        else:
            self.idle.pop(worker_id, None)

    def uneven(
        self,
        members: Collection[int],
        done: Mapping[int, int],
        stopped: Mapping[int, int],
        names: Callable[[Collection[int]], tuple[WorkerName, ...]],
    ) -> UnevenState | None:
        """Whether members wait for others that are done, and which.

        Args:
            members: the workers that are in the round.
            done: the number of boundaries that each member passed that is done.
            stopped: the number of boundaries that each worker passed that left the round at the agreed boundary.
            names: returns the names of workers.
        """
        waiting = {w: self.blocked[w] for w in members if w in self.blocked and w not in done}
        idle = {w: self.idle[w] for w in members if w in self.idle and w not in done and w not in waiting}
        ended = {**stopped, **done}
        if not (waiting or idle) or not ended or self.waits_from is None:
            return None
        busy = len(set(members) - done.keys()) - len(waiting) - len(idle)
        counts = {w: boundaries for w, (_, boundaries) in waiting.items()}
        steps = UnevenSteps(
            _groups(done, names),
            _groups(stopped, names),
            _groups(counts, names),
            busy,
            idle=_groups(dict.fromkeys(idle, 0), names),
        )
        since = max(self.waits_from, *(since for since, _ in waiting.values()), *idle.values())
        return UnevenState(steps, since, unresolvable=not busy)

    def deadlines(self, *bounds: float) -> list[float]:
        """When something may be due, if members may wait, or be idle, for this many seconds."""
        waits_from = self.waits_from
        if waits_from is None:
            return []
        since = [*(since for since, _ in self.blocked.values()), *self.idle.values()]
        return [max(waits_from, begun) + bound for begun in since for bound in (REPORT_DELAY, *bounds)]


def _groups(
    counts: Mapping[int, int], names: Callable[[Collection[int]], tuple[WorkerName, ...]]
) -> tuple[StepGroup, ...]:
    """Workers by the boundaries they have passed."""
    groups: dict[int, list[int]] = {}
    for worker in sorted(counts):
        groups.setdefault(counts[worker], []).append(worker)
    return tuple(
        StepGroup(
            boundaries, tuple(sorted(names(workers[:MAX_NAMED_WORKERS]))), max(0, len(workers) - MAX_NAMED_WORKERS)
        )
        for boundaries, workers in sorted(groups.items())
    )
