"""Detects what more training cannot fix: states that should be equal and are not, rounds that fail in the same way.

An error that the script repeats ends the run

* if every member of a round raised it: no member is left, and the reason names the error;
* if it was raised in two rounds without a boundary passed between (as `Version` says: re-doing what an older state had
  lost is no progress), by any rank, whatever has ended the rounds between them: two bugs may take turns;
* but in three, if it was raised in the same slot each time, or on one of several hosts: a broken device looks like
  that. By then that slot rests, and another is used if there is one; if there is none, the third try has shown that it
  does not go away.

Where survivors make a step in between, nothing ends: a worker that dies of its own GPU is replaced, ever later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Round
from edriver.model.cause import Cause, CauseKind, Digests, RaisedByAll, RepeatedError, ReportedText, Tracebacks
from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.limits import MAX_NAMED
from edriver.model.records import Worker
from edriver.model.script_error import ScriptError

MAX_ERROR_ROUNDS: Final = 2
"""Number of rounds without progress between them after which the same error of the script ends the run."""

MAX_LOCAL_ERROR_ROUNDS: Final = 3
"""The same while only one slot or host raises it: by then it has been quarantined, if there are others."""

MAX_KNOWN_STARTS: Final = 100
"""Rounds whose start is known: survivors come back from the latest ones."""


def state_lost(last: Round) -> Cause:
    """Why the run ends once its last round has no member left: it never starts from scratch unasked."""
    raised = set(last.errors.values())
    if len(raised) == 1 and last.errors.keys() == set(last.plan.workers):
        return Cause(CauseKind.STATE_LOST, detail=RaisedByAll(raised.pop(), len(last.errors)))
    return Cause(CauseKind.STATE_LOST)


def positions_lost(positions: Sequence[int]) -> Cause:
    """Why the run ends once no worker holds the newest state, or none holds that of these positions."""
    if not positions:
        return Cause(CauseKind.STATE_LOST)
    return Cause(CauseKind.STATE_LOST, detail=ReportedText(", ".join(map(str, positions))))


def disagreement(waiting: Iterable[Worker], version: Version) -> Cause | None:
    """Whether holders of one version have different digests of their state; None if they agree."""
    by_digest: dict[str, Worker] = {}
    for worker in waiting:
        assert worker.offer is not None
        if worker.offer.version == version != NO_VERSION:
            by_digest.setdefault(worker.offer.digest, worker)
    if len(by_digest) < 2:
        return None
    named = islice(by_digest.items(), MAX_NAMED)
    digests = Digests(version, tuple((worker.name, digest) for digest, worker in named))
    return Cause(CauseKind.STATES_DIFFER, detail=digests)


class BreakageWatch:
    """Detects consecutive rounds that end by failed collectives although no worker is lost, without a step between.

    The causes persist: unequal shapes, or a bad link between two hosts that both work. Members that have trained in
    this run have shown that they can; where others are in the round that have not, such as the workers of a host whose
    agent reaches the driver but whose data network is down, these others are at fault, and the run continues without
    them.

    Args:
        timeout: the seconds for which such rounds may follow one another while newcomers are blamed.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._judged = NO_ROUND
        self._relieved = NO_ROUND  # the last round whose newcomers were blamed
        self.clear()

    def clear(self) -> None:
        """A round has ended without a failure."""
        self._in_a_row = 0
        self._since: float | None = None

    def newcomers_at_fault(
        self, ended: Round, progress: Callable[[], bool], roster: Roster, now: float
    ) -> list[Worker]:
        """Members of the round that has just ended without which the next one may succeed.

        Args:
            ended: the round that has just ended.
            progress: see repeated_failure.
            roster: the workers.
            now: the time.
        """
        if not self._repeats(ended, progress, now) or self._overdue(now):
            return []
        members = [worker for w in ended.plan.workers if (worker := roster.workers.get(w)) and worker.live]
        newcomers = [worker for worker in members if not worker.trained]
        if not newcomers or len(newcomers) == len(members):
            return []
        self._relieved = ended.plan.round_id
        return newcomers

    def repeated_failure(self, ended: Round, progress: Callable[[], bool], now: float) -> Cause | None:
        """Why the next round would fail in the same way; None: it may not.

        Args:
            ended: the round that has just ended.
            progress: returns whether the next one starts further on than that one has, or that one has lasted for
                long; asked only if it failed so.
            now: the time.
        """
        if not self._repeats(ended, progress, now) or self._relieved == ended.plan.round_id:
            return None
        tracebacks = Tracebacks(
            ended.plan.version,
            tuple((ended.name(w), ended.raised[w]) for w in sorted(ended.raised)[:MAX_NAMED]),
        )
        return Cause(CauseKind.COLLECTIVES_BROKEN, detail=tracebacks)

    def _repeats(self, ended: Round, progress: Callable[[], bool], now: float) -> bool:
        """Whether this round is at least the second one in a row that has failed so."""
        if ended.stopping:  # its members have made a step together, and come back for others
            self.clear()
        if not ended.aborted:
            return False
        if not ended.broke or ended.lost or ended.members or ended.met_unproven:
            self.clear()
            return False
        made_progress = progress()
        if self._judged != ended.plan.round_id:
            self._judged = ended.plan.round_id
            self._in_a_row += 1
            self._since = now if made_progress or self._since is None else self._since
        return self._in_a_row >= 2 and not made_progress

    def _overdue(self, now: float) -> bool:
        return self._since is not None and now - self._since >= self._timeout


class UnprovenConnectionWatch:
    """Spaces out the rounds that end because another process takes a member's place in a connection.

    The next round may well succeed, so it is tried at once, and again at once; then after pauses that double up to
    MAX_PAUSE, so that an attacker that never gives up costs few messages and little processor time.
    """

    MIN_PAUSE: Final = 0.25
    MAX_PAUSE: Final = 5.0
    """In seconds."""
    ROUNDS_WITHOUT_PAUSE: Final = 2
    """Number of consecutive rounds that may end in this way before there is a pause."""

    def __init__(self) -> None:
        """No unproven connection has been found yet."""
        self._last = NO_ROUND
        self._since: float | None = None
        self._in_a_row = 0

    def record(self, ended: Round, now: float) -> None:
        """A round that has not ended yet ends for this reason; records in it when the next round may begin."""
        if not ended.running:
            return
        again = self._last != NO_ROUND and self._last.n + 1 == ended.plan.round_id.n and not ended.under_way
        self._in_a_row = self._in_a_row + 1 if again else 1
        self._since = self._since if again and self._since is not None else now
        doublings = self._in_a_row - self.ROUNDS_WITHOUT_PAUSE - 1
        pause = min(self.MIN_PAUSE * 2.0 ** min(doublings, 10), self.MAX_PAUSE) if doublings >= 0 else 0.0
        ended.note_unproven(self._since, now + pause)
        self._last = ended.plan.round_id


class ErrorWatch:
    """Detects an error that the script raises at the same place in several rounds, without a step between.

    That is a bug, an unreadable sample, or a full disk: it hits every worker that reaches that place, and each new
    round loses such a worker. A single worker proves nothing, because its device may be broken. Rounds that end in
    another way in between do not disprove it: two bugs may alternate, one of which occurs in the smaller round that
    the other one leaves.
    """

    def __init__(self) -> None:
        """No error has been raised yet."""
        self._judged = NO_ROUND
        self._furthest = 0
        self._starts: dict[RoundId, int] = {}  # of the latest rounds: the steps that their state had made
        self.clear()

    def clear(self) -> None:
        """A round has ended without a failure."""
        # For each error, the rounds since the last progress that met it, and in which slots.
        self._recent_errors: dict[ScriptError, dict[RoundId, set[tuple[str, int]]]] = {}

    def repeated_failure(self, ended: Round | None, version: Version, checkpoint: int = 0) -> Cause | None:
        """Why the next round would meet the same error; None: it may not.

        Args:
            ended: the round that has just ended.
            version: the highest version offered for the next one.
            checkpoint: the steps of the newest checkpoint.
        """
        if ended is None:
            return None
        if ended.plan.round_id != self._judged:
            self._note_progress(ended, version, checkpoint)
            self._judged = ended.plan.round_id
        self._note_errors(ended)  # again: of members that were out of reach, errors arrive later
        if not self._recent_errors:
            return None
        seats = ended.plan.seats
        for error, rounds in self._recent_errors.items():
            places = set().union(*rounds.values())
            one_host = len({host for host, _ in places}) == 1 and any(seat.host != seats[0].host for seat in seats)
            if len(rounds) >= (MAX_LOCAL_ERROR_ROUNDS if len(places) == 1 or one_host else MAX_ERROR_ROUNDS):
                again = RepeatedError(error, len(rounds), tuple(sorted(places)))
                return Cause(CauseKind.SAME_ERROR, detail=again)
        return None

    def _note_progress(self, ended: Round, version: Version, checkpoint: int) -> None:
        plan = ended.plan
        # A survivor who came after the last judgement may have brought a step of the round that was judged.
        start = self._starts[plan.round_id] = self._steps(plan.version, plan.checkpoint)
        if len(self._starts) > MAX_KNOWN_STARTS:
            del self._starts[min(self._starts)]
        # Steps that are repeated after a restart from disk do not count as progress.
        reached = max(start, self._steps(version, checkpoint))
        if reached > self._furthest or ended.long_lived:
            self.clear()
        self._furthest = max(self._furthest, reached)

    def _note_errors(self, ended: Round) -> None:
        if ended.finished or not ended.errors:  # of the script's last `run`; or as after most events
            return
        if ended.abort_cause is not None and ended.abort_cause.kind is CauseKind.RESIZE_FAILED:
            return  # another size may well not meet them
        slots = {seat.worker_id: (seat.host, seat.slot) for seat in ended.plan.seats}
        for worker_id, error in ended.errors.items():
            rounds = self._recent_errors.setdefault(error, {})
            rounds.setdefault(ended.plan.round_id, set()).add(slots[worker_id])

    def _steps(self, version: Version, checkpoint: int) -> int:
        """The number of steps made by a state loaded from this checkpoint, or else of this version."""
        if checkpoint or version == NO_VERSION:
            return checkpoint
        return self._starts.get(version.round_id, self._furthest) + version.boundaries
