"""Which of a round's failures came first: what is known about each, and the order in which they are shown. Pure.

Failures come in the order in which they were noticed. A process that has recorded its exception in an error file may
live on for a while, and another that failed of that may be noticed before it; the files' times set that right.

Failures that have no such file stay where they were noticed: an agent notices a death within milliseconds, while a file
that a peer writes because of it would be dated to the same second. So the file's time of change is used where it agrees
with the second that torch writes.

What an error file says never counts as an error that the script repeats (consistency.py): in a script that only runs
others, a lost connection looks the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edriver.model.actions import Failure
from edriver.model.cause import Cause, CauseKind, WorkerName
from edriver.model.events import RecordedError, WorkerExited
from edriver.model.script_error import script_error


def with_last_words(failure: Failure, end: WorkerExited) -> Failure:
    """A failure with what is known once its process has been reaped: the last lines, and the error file."""
    failure = replace(failure, tail=failure.tail or end.tail)
    if end.recorded is None:
        return failure
    traceback = failure.traceback or end.recorded.traceback
    return replace(failure, traceback=traceback, recorded_time=end.recorded.time)


def earlier_failure(failures: Sequence[Failure], worker: WorkerName, end: WorkerExited) -> Failure | None:
    """The failure of a process that was stopped because of these; None: it has not failed before them.

    It has if its error file is older than that of the first of them.
    """
    recorded = end.recorded
    if recorded is None or not failures or not _is_older(recorded, in_order(failures)[0]):
        return None
    cause = Cause(CauseKind.RAISED, worker, detail=script_error(recorded.traceback))
    return with_last_words(Failure(worker, cause), end)


def in_order(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """The failures, the root cause first: those with an error file change places among themselves, by its time."""
    noticed = tuple(failures)
    recorded = iter(sorted((each for each in noticed if each.recorded_time), key=lambda each: each.recorded_time))
    return tuple(next(recorded) if each.recorded_time else each for each in noticed)


def _is_older(recorded: RecordedError, first: Failure) -> bool:
    return 0.0 < recorded.time < first.recorded_time
