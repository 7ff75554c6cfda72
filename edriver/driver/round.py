"""One round as the driver sees it, and the agreed interrupt that may end it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edriver.driver.ranks import RoundPlan
from edriver.driver.script_error import ScriptError


@dataclass(slots=True)
class Interrupt:
    """An agreed interrupt: all members stop at the same boundary (docs/architecture.md, "Agreed interrupt").

    Every member answers a notice at once with the boundaries it has passed, and from then on waits for the verdict
    at its next one. The highest answer plus one is then a boundary that nobody has passed and that everybody reaches.

    Attributes:
        number: told apart from other interrupts of the round by it.
        deadline: when a member that has not answered, or has not stopped, counts as hung.
        reports: boundaries passed, by worker_id.
        boundary: the boundary at which all stop, once the verdict is known.
    """

    number: int
    deadline: float
    reports: dict[int, int] = field(default_factory=dict)
    boundary: int | None = None

    def answered(self, members: set[int]) -> bool:
        """Whether every one of these members has reported."""
        return members <= self.reports.keys()

    def agree(self) -> int:
        """The boundary at which all stop."""
        return max(self.reports.values()) + 1


@dataclass(slots=True)
class Round:
    """The running round, or the last one.

    Attributes:
        plan: as it was assigned.
        members: the workers still in it: not lost, not yet waiting for the next one.
        done: members whose training function has returned, with the boundaries they passed.
        lost: members that failed.
        expired: those of them that were silent, and are being killed.
        raised: tracebacks of collectives that failed, by worker_id.
        errors: exceptions of the script's own, by worker_id.
        interrupt: the agreed interrupt under way.
        interrupts: how many there have been.
        abort_cause: why the round was aborted.
        settled_by: when a round that has ended is given up by those that have not come back.
        settling_in_until: when newcomers' processes are started at the latest, see `settled_in`.
        under_way: members that have passed a boundary.
        finished: whether all were done and were told so.
        entered_next: whether a member has since entered the script's next `run`.
    """

    plan: RoundPlan
    members: set[int]
    settling_in_until: float
    under_way: set[int] = field(default_factory=set)
    done: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    raised: dict[int, str] = field(default_factory=dict)
    errors: dict[int, ScriptError] = field(default_factory=dict)
    interrupt: Interrupt | None = None
    interrupts: int = 0
    abort_cause: str | None = None
    settled_by: float | None = None
    finished: bool = False
    entered_next: bool = False

    @property
    def running(self) -> bool:
        """Whether its members train, as far as the driver has decided."""
        return not self.finished and self.abort_cause is None and not self.stopping

    @property
    def stopping(self) -> bool:
        """Whether its members have been told at which boundary to stop."""
        return self.interrupt is not None and self.interrupt.boundary is not None

    def settled_in(self, now: float) -> bool:
        """Whether its members have their first step behind them, so that others may use their hosts' processors."""
        return self.members <= self.under_way | self.done.keys() or now >= self.settling_in_until

    def deadlines(self) -> Iterator[float]:
        """When something may be due here."""
        if self.running and not self.members <= self.under_way | self.done.keys():
            yield self.settling_in_until
        if self.interrupt and not self.finished and self.abort_cause is None:
            yield self.interrupt.deadline
        if self.settled_by is not None:
            yield self.settled_by

    def order(self, workers: set[int]) -> tuple[int, ...]:
        """These workers in order of rank."""
        return tuple(w for w in self.plan.workers if w in workers)
