"""How long each part of the way into a round took; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from edriver.driver.observe.open_interruption import Opening

MEMBER_PHASE_ENDS: Final = {"rendezvous": "built", "sync": "synced", "first_step": "stepped"}
"""The phases after a round's assignment, each with the time (RoundTimes in notification.proto) at which it
ends: for the last member."""


def recovery_phases(opening: Opening, assigned: float, members: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of each phase, in their order; together they are what lies between the first and the last of the times.

    A time that no member has, or that lies before the one before it, makes a phase of no length.

    Args:
        opening: how the interruption began.
        assigned: when the driver assigned this round.
        members: for each member RoundTimes, by name.
    """
    known = list(members)
    survivors = [member for member in known if member.get("stopped")]
    ends: list[tuple[str, float | None]] = [
        ("unnoticed", opening.ended if opening.noticed is None else opening.noticed),
        ("detect", opening.ended),
        ("abort", _last(survivors, "waiting")),
        ("wait", assigned),
        *((phase, _last(known, end)) for phase, end in MEMBER_PHASE_ENDS.items()),
    ]
    return spans(opening.start, ends)


def _last(members: Iterable[Mapping[str, float]], name: str) -> float | None:
    return max((member[name] for member in members if member.get(name)), default=None)


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
