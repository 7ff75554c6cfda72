"""How long each part of the way into a round took; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ENDS: Final = {"abort": "waiting", "rendezvous": "built", "sync": "synced", "first_step": "stepped"}
"""The phases of a recovery, each with the time (RoundTimes in notification.proto) at which it ends; the last member's
counts. Before them comes "detect"."""


def recovery_phases(
    noticed: float | None, before_ended: float | None, assigned: float, members: Iterable[Mapping[str, float]]
) -> dict[str, float]:
    """Seconds of each phase, in their order; together they are what lies between the first and the last of the times.

    A time that nobody has, or that lies before the one before it, makes a phase of no length.

    Args:
        noticed: when the death was noticed that ended the round before; None: it was no death.
        before_ended: when the driver ended the round before; None: there was none.
        assigned: when the driver assigned this one.
        members: for each member RoundTimes, by name.
    """
    ended = assigned if before_ended is None else before_ended
    at = ended if noticed is None else min(noticed, ended)
    phases = {"detect": ended - at}
    at = ended
    known = list(members)
    for phase, end in ENDS.items():
        reached = max([at, *(member[end] for member in known if member.get(end))])
        phases[phase] = reached - at
        at = reached
    return phases
