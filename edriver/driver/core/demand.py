"""How many slots the run can use, for an engine that gives hosts out. Decides nothing. Part of the core."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edriver.driver.core.membership import Membership


@dataclass(frozen=True, slots=True)
class Demand:
    """What the run needs of an engine, at one moment.

    Attributes:
        slots: number of slots that the run can use, in all: --max-np, or what the operator has asked for since; and
            those of drained workers that train on until others can take their places.
        needed: number of slots below which it cannot train: --min-np.
        unused: hosts of which the run uses no slot and will use none: the oldest first.
        hosts: all hosts that the run knows.
    """

    slots: int
    needed: int
    unused: tuple[str, ...] = ()
    hosts: tuple[str, ...] = field(default=(), compare=False)


def demand_of(run: Membership) -> Demand:
    """The demand of a run.

    A host that was drained as a whole is unused once its workers have left. So is one without workers while others
    have as many as the run may use.
    """
    workers = Counter(worker.host for worker in run.roster.workers.values())
    room = run.sizes.max_workers - run.roster.occupied
    unused = (
        record.name
        for record in run.roster.hosts.values()
        if not workers[record.name] and (record.drained_whole or (record.wanted and room < run.roster.width(record)))
    )
    slots = run.sizes.worth_asking_for + len(run.roster.leaving)
    return Demand(slots, run.settings.min_np, tuple(unused), tuple(run.roster.hosts))
