"""Whether what a run tells of its time is what its workers wrote down: each interruption, and its goodput.

The truth is in the workers' own records alone (benchmarks/records.py): when each of them entered a round, and finished
each step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.history import History, Round
from edriver.model.stall_limits import MIN_STALL_SECONDS, STALL_FACTOR
from edriver.text.message_reader import message_of
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

SHARE, SECONDS = 0.01, 0.1
"""How far a number may be from the truth: the larger one counts.

A worker writes its record after it has reported, and may wait for a processor between the two.
"""

_STARTS = (status_pb2.INTERRUPTION_KIND_BOOT, status_pb2.INTERRUPTION_KIND_NEXT_RUN)


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """A round in which steps were made, in seconds of the system-wide monotonic clock.

    Attributes:
        number: the round's.
        start: when its last member had the state.
        last: when the last of its steps was made that counts for the run's progress, by its first member,
        spread: and how many seconds later by its last one: any of them may have reported when that was.
        training: seconds of steps that no round before it had made,
        repeating: of steps that one had made,
        unsure: and seconds that are either a stall or a long step: it lies within a twentieth of the limit.
        stalled_at: when each stall began, and how long it was.
    """

    number: int
    start: float
    last: float
    spread: float
    training: float
    repeating: float
    unsure: float
    stalled_at: tuple[tuple[float, float], ...]

    @property
    def stalls(self) -> tuple[float, ...]:
        """How long each stall was."""
        return tuple(seconds for _, seconds in self.stalled_at)


def round_times(history: History) -> Iterator[RoundTimes]:
    """The rounds of a run, as its workers wrote them down."""
    made, gaps = 0, list[float]()
    for current in history.rounds:
        if not current.done:
            continue
        yield _times(current, made, gaps)
        made = max(made, current.last_step)


def _times(current: Round, made: int, gaps: list[float]) -> RoundTimes:
    start = at = max(record.time for record in current.starts.values())
    stalls: list[tuple[float, float]] = []
    training = repeating = unsure = 0.0
    for step, ranks in sorted(current.done.items()):
        done = max(at, min(record.time for record in ranks.values()))
        gap, usual = done - at, median(gaps[-31:]) if len(gaps) >= 3 else None
        good = gap
        if usual is not None:
            limit = max(STALL_FACTOR * usual, usual + MIN_STALL_SECONDS)
            if gap > limit:
                good = usual
                stalls.append((at + usual, gap - usual))
            unsure += gap if abs(gap - limit) < 0.05 * limit else 0.0
        gaps.append(gap)
        training += good if step > made else 0.0
        repeating += good if step <= made else 0.0
        at = done
    latest = [record.time for record in current.done[max(current.done)].values()]
    spread = max(latest) - min(latest)
    return RoundTimes(current.number, start, at, spread, training, repeating, unsure, tuple(stalls))


def time_faults(history: History, event_log: Path) -> list[str]:
    """What the run has reported wrongly, in sentences."""
    events = [message_of(status_pb2.Event, json.loads(line)) for line in event_log.read_text().splitlines()]
    ended = next(event for event in events if event.HasField("run_ended"))
    reported = [event.interruption for event in events if event.HasField("interruption")]
    rounds, wall = list(round_times(history)), epoch_seconds(ended.time) - epoch_seconds(events[0].time)
    return [
        *_length_faults(rounds, reported),
        *_sum_faults(rounds, ended.run_ended, wall),
        *_step_faults(history, ended.run_ended, reported),
    ]


def _length_faults(rounds: list[RoundTimes], reported: list[status_pb2.Interruption]) -> Iterator[str]:
    to_monotonic = time.monotonic() - time.time()
    between = [each for each in reported if each.kind not in (*_STARTS, status_pb2.INTERRUPTION_KIND_STALL)]
    if len(between) != len(rounds) - 1:
        yield f"{len(between)} interruptions between rounds are reported, of {len(rounds) - 1}"
        return
    for (before, after), each in zip(pairwise(rounds), between, strict=True):
        true, seconds = after.start - before.last, span_seconds(each.duration)
        if _differ(true, seconds) and _differ(true - before.spread, seconds):
            yield f"the interruption before round {after.number} took {true:.3f} s, and {seconds:.3f} s are reported"
        began = epoch_seconds(each.start_time) + to_monotonic
        if abs(began - before.last) > SECONDS + before.spread:
            yield f"the interruption before round {after.number} began {began - before.last:.3f} s after the last step"
    for part in rounds:
        stalls = [span_seconds(each.duration) for each in reported if _is_stall_of(each, part.number)]
        if not part.unsure and (len(stalls) != len(part.stalls) or any(map(_differ, part.stalls, stalls))):
            yield f"round {part.number} has stalled for {part.stalls} s, and {stalls} are reported"


def _is_stall_of(each: status_pb2.Interruption, number: int) -> bool:
    return each.kind == status_pb2.INTERRUPTION_KIND_STALL and each.round_id.n == number


def _sum_faults(rounds: list[RoundTimes], ended: status_pb2.RunEnded, wall: float) -> Iterator[str]:
    spent = ended.time_spent
    reported = span_seconds(spent.training)
    true, unsure = sum(part.training for part in rounds), sum(part.unsure for part in rounds)
    if abs(reported - true) > max(SHARE * true, SECONDS) + unsure:
        yield f"{true:.3f} s went into steps that count, and {reported:.3f} s are reported"
    kinds = ("booting", "training", "repeating", "recovering", "waiting", "stalled", "ending")
    everything = sum(span_seconds(getattr(spent, kind)) for kind in kinds)
    if _differ(wall, everything):
        yield f"the run took {wall:.3f} s, and its parts are {everything:.3f} s"
    if abs(spent.goodput - reported / everything) > 1e-6:
        yield f"a goodput of {spent.goodput} is reported, with {reported} s of {everything} s"


def _step_faults(
    history: History, ended: status_pb2.RunEnded, reported: list[status_pb2.Interruption]
) -> Iterator[str]:
    done = [current for current in history.rounds if current.done]
    most = sum(max(0, one.last_step - two.first_step) for one, two in pairwise(done))
    lost = sum(each.steps_lost for each in reported)
    if not history.steps_lost() <= lost <= most:
        yield f"{history.steps_lost()} to {most} steps were made again, and {lost} are reported"
    if ended.progress.steps != done[-1].last_step:
        yield f"the run ended at step {done[-1].last_step}, and step {ended.progress.steps} is reported"


def _differ(true: float, reported: float) -> bool:
    return abs(true - reported) > max(SHARE * true, SECONDS)
