"""Who holds a round up (pace.proto), in words."""

from __future__ import annotations

from typing import Final

from edriver.text.phrases import count_text
from edriver.text.progress_text import length_text, time_text
from edriver.v1 import pace_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

ACTIVITIES: Final = {
    pace_pb2.WORKER_ACTIVITY_UNSPECIFIED: "whose activity is unknown",
    pace_pb2.WORKER_ACTIVITY_WAITING: "which is waiting",
    pace_pb2.WORKER_ACTIVITY_LOADING: "which is loading data",
    pace_pb2.WORKER_ACTIVITY_COMPUTING: "which is",
    pace_pb2.WORKER_ACTIVITY_EVALUATING: "which is evaluating",
    pace_pb2.WORKER_ACTIVITY_SAVING: "which is saving a checkpoint",
    pace_pb2.WORKER_ACTIVITY_COMMITTING: "which is committing",
    pace_pb2.WORKER_ACTIVITY_STOPPED: "whose process is stopped (by a signal or a debugger)",
    pace_pb2.WORKER_ACTIVITY_SILENT: "which does not answer",
}
"""What a member does, behind its name."""

REASONS: Final = {
    pace_pb2.STRAGGLER_REASON_UNSPECIFIED: "unknown",
    pace_pb2.STRAGGLER_REASON_LOADING: "data loading",
    pace_pb2.STRAGGLER_REASON_COMPUTING: "its own computing",
    pace_pb2.STRAGGLER_REASON_PROCESSOR: "waiting for a processor",
}
"""What makes a straggler slow."""

SAME_COLLECTIVES: Final = (
    "All ranks have to call the same collectives in the same order (is one inside `if edriver.rank() == 0:`?)"
)
"""What is usually wrong where ranks wait in different collectives, or one ends in them."""

MAX_NAMED: Final = 3
"""Members that are named in one line."""


def hold_up_text(hold_up: pace_pb2.HoldUp, now: float) -> str:
    """No step for 23 s; all are waiting for rank 1 (b:0), which is loading data at train.py:40 (main).

    Args:
        hold_up: who is waited for.
        now: the time, in seconds since the epoch.
    """
    return f"no step for {time_text(now - epoch_seconds(hold_up.start_time))}; {waited_for_text(hold_up)}"


def waited_for_text(hold_up: pace_pb2.HoldUp) -> str:
    """All are waiting for rank 1 (b:0), which is loading data at train.py:40 (main)."""
    count, named = hold_up.waited_for_count, hold_up.waited_for[:MAX_NAMED]
    if not count:
        text = f"all {hold_up.waiting} are waiting for one another in collectives"
        if not hold_up.different_places:
            return text
        places = hold_up.different_places[:MAX_NAMED]
        where = ", ".join(f"rank {each.rank} ({each.host}:{each.slot}) at {each.place}" for each in places)
        return f"{text}: {where}. {SAME_COLLECTIVES}"
    parts = [f"rank {each.rank} ({each.host}:{each.slot}), {activity_text(each)}" for each in named]
    more = f", and {count_text(count - len(named), 'other')}" if count > len(named) else ""
    text = f"{'; '.join(parts)}{more}"
    return f"all are waiting for {text}" if hold_up.waiting else f"none is waiting for another: {text}"


def activity_text(member: pace_pb2.WaitedFor) -> str:
    """What a member does: which is loading data at train.py:40 (main)."""
    words = ACTIVITIES[member.activity]
    if member.place:
        return f"{words} at {member.place}"
    return "which is computing" if member.activity == pace_pb2.WORKER_ACTIVITY_COMPUTING else words


def straggler_text(straggler: pace_pb2.Straggler, now: float) -> str:
    """Rank 5 (c:1) is 1.8 times slower than the median of the others for 40 s: data loading.

    Args:
        straggler: who.
        now: the time, in seconds since the epoch.
    """
    name = f"rank {straggler.rank} ({straggler.host}:{straggler.slot})"
    began = epoch_seconds(straggler.start_time)
    if straggler.HasField("end_time"):
        lasted = time_text(epoch_seconds(straggler.end_time) - began)
        return f"{name} is no longer slower than the others, after {lasted}"
    since = f" for {time_text(now - began)}" if now - began >= 1 else ""
    excess = length_text(span_seconds(straggler.excess))
    return (
        f"{name} is {straggler.ratio:.1f} times slower than the median of the others{since}, "
        f"{excess} per step: {REASONS[straggler.reason]}"
    )


def step_text(times: pace_pb2.StepTimes) -> str:
    """120 ms per step: computing 80 ms, waiting 30 ms, loading 10 ms."""
    step = length_text(span_seconds(times.step))
    loading = length_text(span_seconds(times.loading))
    if not times.HasField("waiting"):
        return f"{step} per step, loading {loading}"
    computing, waiting = (length_text(span_seconds(part)) for part in (times.computing, times.waiting))
    return f"{step} per step: computing {computing}, waiting {waiting}, loading {loading}"
