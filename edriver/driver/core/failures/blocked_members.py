"""Uneven steps: some members of a round have made their last one, others wait in a collective for them. Pure.

Nothing that a member does can help then: one that is done, or has stopped at the agreed boundary, calls no further
collective of the round. As long as one other member still computes, the wait may be for that one, and its own limit
applies (an evaluation of rank 0 may last an hour). Once all that are left wait, the round is only a matter of time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edriver.driver.core.cause import StepGroup, UnevenSteps, WorkerName

REPORT_DELAY: Final = 7.0
"""Seconds of waiting after which it is reported: a last step that is slow on one host is not worth a line."""

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
    """Which members of a round stand still in a collective.

    Attributes:
        blocked: since when, and after how many boundaries, by worker_id.
        waits_from: when the last member came that calls no further collective; None: there is none.
    """

    blocked: dict[int, tuple[float, int]] = field(default_factory=dict)
    waits_from: float | None = None

    def note(self, worker_id: int, since: float, boundaries: int, seconds: float) -> None:
        """A member says that it stands still in a collective; with 0 seconds, that it goes on."""
        if seconds > 0:
            self.blocked[worker_id] = (since, boundaries)
        else:
            self.blocked.pop(worker_id, None)

    def uneven(
        self,
        members: Collection[int],
        done: Mapping[int, int],
        stopped: Mapping[int, int],
        names: Callable[[Collection[int]], tuple[WorkerName, ...]],
    ) -> UnevenState | None:
        """Whether members wait for others that are done, and who.

        Args:
            members: the workers that are in the round.
            done: those of them that are done, and how many boundaries each has passed.
            stopped: workers that have left the round at the agreed boundary, likewise.
            names: names workers.
        """
        waiting = {w: self.blocked[w] for w in members if w in self.blocked and w not in done}
        ended = {**stopped, **done}
        if not waiting or not ended or self.waits_from is None:
            return None
        busy = len(members) - len(done) - len(waiting)
        counts = {w: boundaries for w, (_, boundaries) in waiting.items()}
        steps = UnevenSteps(_groups(done, names), _groups(stopped, names), _groups(counts, names), busy)
        return UnevenState(
            steps, max(self.waits_from, *(since for since, _ in waiting.values())), unresolvable=not busy
        )

    def deadlines(self, bound: float) -> Iterator[float]:
        """When something may be due, if it may last so many seconds."""
        if self.waits_from is not None:
            for since, _ in self.blocked.values():
                yield max(self.waits_from, since) + REPORT_DELAY
                yield max(self.waits_from, since) + bound


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
