"""Sizes that the script cannot train with: a failure in the first round of a new size is the resize's. Pure.

An assertion that the global batch divides, a file that there is one of for each rank, memory that lasts for fewer
workers: the script that trained with two workers fails with three, at every attempt, and would end a run that was well.
So the run goes back to the last size that has trained, and leaves further slots idle. Another size is tried when hosts
change; a size that has failed is not, unless an operator asks for a size.

A failure is the resize's if it comes before the round's first boundary and is not known from another size: the round
counts as a resize, no slot rests for it, and the run goes back to the largest smaller size that has trained. That takes
one round if all members raise, two if some do: one may be an accident. The size is not tried again in this `run` call;
`edriver resize` has all tried again.

A round that has such a size to go back to has it in its assignment (`fallback_size`), and a member that fails in it
before its first boundary does not end: it goes back to its last boundary and offers that, or the state would be lost
where all raise. In restart mode nothing is known of steps: there a size has trained if a round of it has ended without
an exception, or lasted for Settings.failure_window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Round
from edriver.model.actions import Failure
from edriver.model.cause import Cause, CauseKind, Count, Exit, FailedResize, RefusedSize, RepeatedError
from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.script_error import ScriptError
from edriver.model.settings import WHOLE_HOSTS, Settings

MAX_ATTEMPTS: Final = 2
"""Rounds of a new size that may fail before it is given up. One is enough if all of its members fail: what fails in a
single member may be an accident."""


class NewSizes:
    """Knows the allowed numbers of workers: those with which the script has trained, and those with which it cannot.

    It judges a round after the round has ended and all members have left it, when their errors are known.

    Args:
        settings: the operator's limits.
        roster: the hosts and workers.

    Attributes:
        limit: --max-np, or the operator's later value.
        request: the operator's latest request to change it; None: no operator has.
    """

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self.limit = settings.max_np
        self.request: Cause | None = None
        self._limit_before = settings.max_np
        self._settings = settings
        self._roster = roster
        self._judged: RoundId = NO_ROUND
        self.clear()

    def clear(self) -> None:
        """The script enters its next `run`: another function, which may train with other sizes."""
        self._trained: set[int] = set()
        self._known: set[ScriptError] = set()  # what was raised with a number of workers that has trained by then
        self._last_trained = 0
        self._try_again()

    def resize(self, size: int, requester: str = "") -> None:
        """An operator asks for this many workers at most; what has failed is tried again."""
        self._limit_before = self.limit
        self.limit = self._whole(min(max(size, self._settings.min_np), self._settings.max_np))
        self.request = Cause(CauseKind.RESIZED, detail=Count(self.limit), requester=requester)
        self._try_again()

    def request_behind(self, before: int, after: int) -> Cause | None:
        """The operator's request that explains a change of the number of workers; None: it does not follow from one.

        Args:
            before: the number of workers,
            after: and that after the change.
        """
        forced = before > self.limit >= after
        enabled = after > max(before, self._limit_before)
        return self.request if forced or enabled else None

    def note_size(self, size: int) -> None:
        """A round has this many workers: what follows from the latest request has been done, if they are that many."""
        if size > self._limit_before:
            self._limit_before = self.limit

    def _try_again(self) -> None:
        self._refused: set[int] = set()
        self._attempts: Counter[int] = Counter()

    @property
    def max_workers(self) -> int:
        """Most workers to be used now: fewer than the limit where the script cannot train with all that there are."""
        refused = self.refused
        return self._way_back(refused) if refused else self._whole(self.limit)

    @property
    def refused(self) -> int:
        """The number of workers that there could be now, if it is not tried again; else 0."""
        if not self._refused:
            return 0
        count = self._whole(min(self.limit, self._roster.usable_slots))
        return count if count in self._refused else 0

    @property
    def worth_asking_for(self) -> int:
        """Most workers for which an engine is to have hosts: what is not used would be given back, and taken again."""
        return min(self.limit, max(self._trained)) if self._refused else self.limit

    def allowed(self, count: int) -> int:
        """The number of workers that a round may have, out of this many that are ready."""
        count = min(count, self.max_workers)
        return self._way_back(count) if count in self._refused else count

    def fallback_size(self, size: int) -> int:
        """The number of workers to continue with if the script fails with this new number; 0: no such number."""
        return 0 if size in self._trained else self._way_back(size)

    def is_to_blame(self, current: Round | None, cause: Cause, now: float) -> bool:
        """Whether a member of the round fails of its size: an error of the script's, before progress, where fewer
        workers have trained.
        """
        if current is None or cause.kind is not CauseKind.RAISED or cause.detail in self._known:
            return False
        return current.plan.fallback_size > 0 and not self._has_progress(current, now)

    def end_cause(self, current: Round, cause: Cause, now: float) -> Cause:
        """The cause of the round's end, which counts as the resize's if that is to blame."""
        if not self.is_to_blame(current, cause, now):
            return cause
        plan = current.plan
        resize = FailedResize(len(plan.seats), plan.fallback_size, cause)
        return Cause(CauseKind.RESIZE_FAILED, cause.worker, detail=resize)

    def judge(self, ended: Round | None, failures: Mapping[int, Failure]) -> Cause | None:
        """Learn from a round that is over; returns why its size is not tried again, None: it may be.

        Args:
            ended: the round.
            failures: of workers since it was formed, by worker_id.
        """
        if ended is None:
            return None
        learned, self._judged = ended.plan.round_id == self._judged, ended.plan.round_id
        if ended.finished:  # of the script's last `run`
            return None
        if learned:
            self._note_late_errors(ended)
            return None
        size = len(ended.plan.seats)
        failed = self._failed(ended, failures)
        survive = self._settings.mode.members_survive
        trains = self._steps_known(ended) if survive else not failed or ended.long_lived
        if trains:
            self._trained.add(size)
            self._last_trained = size
            del self._attempts[size]
        if size in self._trained:
            self._known |= set(ended.errors.values())
        if trains or not failed or not ended.plan.fallback_size:
            return None
        self._attempts[size] += 1
        if failed != set(ended.plan.workers) and self._attempts[size] < MAX_ATTEMPTS:
            return None
        self._refused.add(size)
        error = next((ended.errors[w] for w in ended.plan.workers if w in ended.errors), None)
        return Cause(CauseKind.SIZE_REFUSED, detail=RefusedSize(size, ended.plan.fallback_size, error))

    def _note_late_errors(self, ended: Round) -> None:
        """Where all members were out of reach at once, their round was judged before the script's error arrived."""
        if ended.errors and (self._steps_known(ended) if self._settings.mode.members_survive else ended.long_lived):
            self._known |= set(ended.errors.values())

    def explained(self, end: Cause, last: Round | None, failures: Mapping[int, Failure]) -> Cause:
        """The cause of the run's end, with the resize if the script has failed since and cannot return to a size."""
        if last is None or not self._last_trained or len(last.plan.seats) in self._trained or last.plan.hands_over:
            return end
        failed = self._failed(last, failures)
        if self._steps_known(last) or last.long_lived or not failed:
            return end
        if isinstance(end.detail, RepeatedError) and end.detail.error in self._known:  # met with other sizes as well
            return end
        if end.kind is CauseKind.STATE_LOST and failed != set(last.plan.workers):  # others were lost in another way
            return end
        size = len(last.plan.seats)
        return Cause(CauseKind.RESIZE_FAILED, detail=FailedResize(size, self._last_trained, end))

    def _whole(self, count: int) -> int:
        """The same number of workers, without those that make up no whole replica."""
        size = self._settings.replica_size
        return count if size in (1, WHOLE_HOSTS) else count - count % size

    def _way_back(self, size: int) -> int:
        """The most workers below this number with which the script has trained and the run may continue; 0: none."""
        return max((n for n in self._trained if self._settings.min_np <= n < size), default=0)

    def _has_progress(self, current: Round, now: float) -> bool:
        """Whether the round's members have made a step or, where that is not known, have had the time to."""
        if self._settings.mode.members_survive:
            return self._steps_known(current)
        return now >= current.newcomers_start_at + self._settings.failure_window

    @staticmethod
    def _steps_known(current: Round) -> bool:
        return bool(current.under_way) or any(current.done.values())

    def _failed(self, ended: Round, failures: Mapping[int, Failure]) -> set[int]:
        """The members that an error of the script's has ended, one that is not known from another size."""
        raised = {w for w, error in ended.errors.items() if error not in self._known}
        exited = {w for w in ended.plan.workers if w in failures and _exited_by_itself(failures[w].cause)}
        return raised | (exited - ended.errors.keys())


def _exited_by_itself(cause: Cause) -> bool:
    return (
        cause.kind is CauseKind.EXITED
        and isinstance(cause.detail, Exit)
        and cause.detail.code != 0
        and not cause.preempted
    )
