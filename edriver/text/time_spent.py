"""How a run has spent its time (TimeSpent of status.proto), as shown."""

from __future__ import annotations

from typing import Final

from edriver.text.cause_names import INTERRUPTION_NAMES
from edriver.text.progress_text import knows_steps, length_text
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

TIME_KINDS: Final = ("training", "repeating", "unknown", "recovering", "waiting", "stalled", "booting", "ending")
"""The kinds of time, in the order in which they are shown."""


def seconds_by_kind(spent: status_pb2.TimeSpent) -> dict[str, float]:
    """Seconds of each kind; "unknown" is among them where steps are not known (`knows_steps`)."""
    kinds = (kind for kind in TIME_KINDS if kind != "unknown" or not knows_steps(spent))
    return {kind: span_seconds(getattr(spent, kind)) for kind in kinds}


def time_spent_text(spent: status_pb2.TimeSpent) -> str:
    """The kinds that there were: training 3 min 20 s, recovering 120 ms."""
    return ", ".join(f"{kind} {length_text(seconds)}" for kind, seconds in seconds_by_kind(spent).items() if seconds)


def goodput_text(spent: status_pb2.TimeSpent) -> str:
    """The share of wall time that went into steps that count: 97.3 %; none yet, before the first step; not known."""
    if not knows_steps(spent):
        return "not known"
    return f"{100 * spent.goodput:.1f} %" if spent.HasField("goodput") else "none yet"


def recovery_text(summary: status_pb2.RecoverySummary) -> str:
    """How long recoveries from failures took, of at least one."""
    median, longest = length_text(span_seconds(summary.median)), length_text(span_seconds(summary.longest))
    return f"{median} after a failure (median), {longest} at worst"


def interruption_text(interruption: status_pb2.Interruption, now: float) -> str:
    """A current interruption: no step for 23 s: failure, worker 2 was killed by SIGKILL.

    Args:
        interruption: which one.
        now: the time, in seconds since the epoch.
    """
    lasted = max(0.0, now - epoch_seconds(interruption.start_time))
    why = f", {interruption.cause.text}" if interruption.cause.text else ""
    return f"no step for {length_text(lasted)}: {INTERRUPTION_NAMES[interruption.kind]}{why}"
