"""How long each part of the way into a round took; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PHASE_ENDS: Final = {"abort": "waiting", "rendezvous": "built", "sync": "synced", "first_step": "stepped"}
"""The phases of a recovery, each with the time (RoundTimes in notification.proto) at which it ends; the last member's
counts. Before them comes "detect"."""


def recovery_phases(
    noticed: float | None, before_ended: float | None, assigned: float, members: Iterable[Mapping[str, float]]
) -> dict[str, float]:
    """Seconds of each phase, in their order; together they are what lies between the first and the last of the times.

    A time that no member has, or that lies before the one before it, makes a phase of no length.

    Args:
        noticed: when the death was noticed that ended the round before; None: it was no death.
        before_ended: when the driver ended the round before; None: there was none.
        assigned: when the driver assigned this one.
        members: for each member RoundTimes, by name.
    """
    ended = assigned if before_ended is None else before_ended
    known = list(members)
    reached = [
        (phase, max((member[end] for member in known if member.get(end)), default=None))
        for phase, end in PHASE_ENDS.items()
    ]
    return spans(ended if noticed is None else min(noticed, ended), [("detect", ended), *reached])


def spans(start: float, ends: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """How long each part took, by name, in their order; each begins where the one before it ended.

    Args:
        start: when the first one began.
        ends: each part's name, and when it ended. One whose end is not known, or lies before its beginning, has no
            length.
    """
    found, at = {}, start
    for name, end in ends:
        reached = at if end is None else max(at, end)
        found[name] = reached - at
        at = reached
    return found
