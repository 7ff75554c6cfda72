"""How a run ended, in words: on failure the root cause first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edriver.driver.core.failures.root_cause import earlier_failure, in_order, with_last_words
from edriver.driver.observe.cause_text import cause_text, worker_text
from edriver.driver.observe.console.hints import Hints
from edriver.model.actions import Failure, FinishRun, RunEnd
from edriver.model.cause import Cause, WorkerName
from edriver.model.events import WorkerExited
from edriver.model.script_error import ScriptError, script_error
from edriver.text.cause_names import UNPROVEN_CONNECTION
from edriver.text.last_output import own_last_lines
from edriver.text.phrases import count_text
from edriver.text.progress_text import length_text

NO_STEP = ", but no step was recorded: nothing called state.commit() or state.check_host_updates() in a round"

MAX_TRACEBACK_LINES = 60
MAX_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run went through.

    Attributes:
        rounds: rounds that were begun.
        failures: rounds that ended by a failure.
        preemptions: rounds that ended because places were taken away.
        resizes: rounds that ended for another change of the members.
        unproven: rounds that ended because a connection did not prove to lead to a member.
        steps_lost: steps that had to be made again.
        seconds: how long the run took, as status, page and records have it.
        goodput: the share of that which went into steps that count; None: no step was made.
        counts_steps: whether a script that trains would have made steps that are seen here.
    """

    rounds: int
    failures: int
    preemptions: int
    resizes: int
    unproven: int
    steps_lost: int
    seconds: float
    goodput: float | None = None
    counts_steps: bool = False


def success_report(tally: Tally) -> str:
    """One line for a run that succeeded."""
    counts = (
        (tally.failures, "failure", " survived"),
        (tally.preemptions, "preemption", ""),
        (tally.resizes, "resize", ""),
        (tally.unproven, UNPROVEN_CONNECTION, ""),
        (tally.steps_lost, "step", " lost"),
    )
    spent = "".join(f", {count_text(count, noun)}{more}" for count, noun, more in counts if count)
    good = NO_STEP if tally.counts_steps else ""
    if tally.goodput is not None:
        good = f", goodput {100 * tally.goodput:.1f} %"
    return f"done: {count_text(tally.rounds, 'round')}{spent}, {length_text(tally.seconds)}{good}"


def failure_report(finish: FinishRun, hints: Hints) -> str:
    """The report of a run that did not succeed; of one that was stopped, failures are only what happened before.

    Args:
        finish: its end.
        hints: explains failures of known kinds.
    """
    return "\n".join(_stopped(finish) if finish.end is RunEnd.STOPPED else _failed(finish, hints))


def with_last_output(
    failures: Sequence[Failure], worker: WorkerName, end: WorkerExited, *, stopped: bool = False
) -> tuple[Failure, ...]:
    """The failures once a worker has been reaped, which is when its last lines and its error file are known.

    Args:
        failures: the failures.
        worker: the worker.
        end: the end of its process.
        stopped: whether it was stopped because of them: its error file may show that it had failed before.
    """
    if any(failure.worker.worker_id == worker.worker_id for failure in failures):
        return in_order(
            with_last_words(each, end) if each.worker.worker_id == worker.worker_id else each for each in failures
        )
    earlier = earlier_failure(failures, worker, end) if stopped else None
    return in_order([*failures, earlier] if earlier else failures)


def _failed(finish: FinishRun, hints: Hints) -> Iterator[str]:
    if finish.cause.itself or not finish.failures:
        yield f"failed: {cause_text(finish.cause)}"
        yield from _before(finish)
        return
    first, *others = finish.failures
    yield f"failed: {cause_text(first.cause)}"
    yield from _details(first)
    if hint := hints.of(first):
        yield f"hint: {hint}"
    yield f"so the run ended: {cause_text(finish.cause)}"
    alike = [other for other in others if _kind(other) == _kind(first)]
    if alike:
        yield f"in the same way: {', '.join(worker_text(failure.worker) for failure in alike)}"
    for failure in others:
        if failure not in alike:
            yield f"also: {cause_text(failure.cause)}{_last_line(failure)}"


def _stopped(finish: FinishRun) -> Iterator[str]:
    yield f"stopped: {cause_text(finish.cause)}"
    yield from _before(finish)


def _before(finish: FinishRun) -> Iterator[str]:
    for failure in finish.failures:
        yield f"before that: {cause_text(failure.cause)}{_last_line(failure)}"


def _kind(failure: Failure) -> tuple[Cause, ScriptError | str]:
    """What failures of one kind have in common: of exceptions the place, for their messages may differ in a number."""
    cause = replace(failure.cause, worker=None, preempted=False)
    return cause, script_error(failure.traceback) if failure.traceback else _last_line(failure)


def _details(failure: Failure) -> Iterator[str]:
    traceback = failure.traceback.strip().splitlines()
    yield from (f"  {line}" for line in _end(traceback, MAX_TRACEBACK_LINES))
    tail = own_last_lines(failure.tail, failure.traceback)
    if tail:
        yield "  its last lines of output:"
        yield from (f"    {line}" for line in tail[-MAX_TAIL_LINES:])


def _end(lines: list[str], most: int) -> list[str]:
    """The lines, or their end if there are too many: that is where the exception is."""
    return lines if len(lines) <= most else [f"... ({len(lines) - most} lines left out)", *lines[-most:]]


def _last_line(failure: Failure) -> str:
    text = failure.traceback.strip() or failure.tail.strip()
    return f": {text.splitlines()[-1].strip()}" if text else ""
