"""The training thread of a worker: it drives the loop of its rounds, and carries out what that asks for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, TypeVar

from edriver.checkpoint_folder.ownership import release_at_exit
from edriver.common.lease import Lease
from edriver.model.plan import NO_ASSIGNMENT, Assignment
from edriver.model.stall_limits import Phase
from edriver.text.wire_text import wire_text
from edriver.v1 import notification_pb2 as pb
from edriver.worker.context import WorkerContext
from edriver.worker.errors import HostsUpdatedInterrupt, PeerLostError, SwallowedInterruptError, UnprovenPeerError
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Answer, Complaint, Effect, OfScript, OfWorker, Raised
from edriver.worker.rounds.group import Group
from edriver.worker.rounds.notification import NotificationServer
from edriver.worker.rounds.participant import BoundaryVerdict, End, Participant, RoundLoop, SealVerdict, Stage
from edriver.worker.rounds.progress_watch import ProgressWatch
from edriver.worker.rounds.round_times import RoundTimes
from edriver.worker.rounds.script_call import ScriptCall
from edriver.worker.state.digests import with_modes
from edriver.worker.watch.forked import CreatorProcess
from edriver.worker.watch.script_location import calling_location, script_line
from edriver.worker.watch.traceback_text import traceback_text

logger = logging.getLogger("edriver.worker")

R = TypeVar("R")
E = TypeVar("E", bound=End | BoundaryVerdict | SealVerdict | None)

SILENCE_BOUND: Final = 30.0
"""Seconds without a word from the agent (it speaks every 4 s at least) after which a waiting worker gives up."""


class TrainingThread:
    """Drives the loop, in the thread that calls it.

    Args:
        context: of this process.
        worker_id: this worker's id, for people.
        participant: what decides,
        changed: and its lock, which is notified of every notice that it has taken.
        server: the way to the driver.
        group: the process group.
        collective_timeout: seconds that a collective may take.
        times: when this worker got how far.
        watch: looks at this thread.
        looks_like_peer_loss: tells a broken collective from an exception of the script's own.
    """

    def __init__(
        self,
        context: WorkerContext,
        worker_id: str,
        participant: Participant,
        changed: threading.Condition,
        server: NotificationServer,
        group: Group,
        collective_timeout: float,
        times: RoundTimes,
        watch: ProgressWatch,
        looks_like_peer_loss: Callable[[BaseException], bool],
    ) -> None:
        self._context = context
        self._worker_id = worker_id
        self._participant = participant
        self._changed = changed
        self._server = server
        self._group = group
        self._collective_timeout = collective_timeout
        self._times = times
        self._watch = watch
        self._looks_like_peer_loss = looks_like_peer_loss
        self._loop = RoundLoop(participant, group.store)
        self._agent_silence = AgentSilence(lambda: server.last_word)
        self._owner = CreatorProcess()
        self._raised_at = "?"
        self._left_at = ""

    def enter(self, call: ScriptCall[Any]) -> None:
        """Enter the script's next `run` call."""
        self._carry_out(self._loop.enter(), call)

    def run(self, call: ScriptCall[R]) -> R | None:
        """Call the function in one round after the other until all members are done: see `run.run`."""
        rounds = self._loop.run()
        try:
            call.state.prepare()
            while (end := self._carry_out(rounds, call)) is None:
                pass  # another round
            if end is End.LEFT:
                raise SystemExit(0)
            if end is End.SKIPPED:
                self._context.place.enter(NO_ASSIGNMENT)
                return None
            self._context.phase.show(None)
            release_at_exit()
            return call.result
        except BaseException as error:  # also Ctrl-C and sys.exit: the others need not wait until this process ends
            reported = isinstance(error, SwallowedInterruptError)  # at the boundary
            if self._participant.stage is not Stage.LEAVING and not reported:
                self._report_failure(error)
            raise

    def decide_boundary(self) -> None:
        """Do at a boundary what its news ask for; raises what leads out of the round."""
        steps = self._loop.boundary()
        while not isinstance(step := self._advance(steps, None), BoundaryVerdict):
            assert isinstance(step, OfWorker), "a boundary asks nothing of the script"
            self._perform(step, None)
        self._watch.waits_for_verdict = False
        if step is not BoundaryVerdict.PASS:
            self._raised_at = calling_location()
            raise (
                HostsUpdatedInterrupt if step is BoundaryVerdict.STOP else PeerLostError(self._participant.abort_cause)
            )

    def settle_seal(self, call: ScriptCall[Any], error: Exception) -> SealVerdict:
        """Find out whether the script makes the step in whose seal the round has broken.

        Args:
            call: the script's function and state.
            error: what the seal has raised.
        """
        steps = self._loop.seal_broken()
        answer: Answer = None
        while not isinstance(step := self._advance(steps, answer), SealVerdict):
            assert not isinstance(step, effects.Forget), "the training function has not ended"
            answer = call.perform(step) if isinstance(step, OfScript) else self._perform(step, error)
        return step

    def _carry_out(
        self,
        steps: Generator[Effect, Any, End | None],
        call: ScriptCall[Any],
        answer: Answer = None,
        error: Exception | None = None,
    ) -> End | None:
        """Carry out what the loop asks for until it ends, or a round is to be forgotten (None).

        Args:
            steps: the loop.
            call: the script's function and state.
            answer: to the loop's last effect,
            error: and what that has raised. It lives until the round is forgotten: to free what its traceback holds may
                take seconds (a data loader's processes), and the others wait for this worker.
        """
        while True:
            step = self._advance(steps, answer)
            if step is None or isinstance(step, End):
                return step
            if isinstance(step, effects.Forget):
                call.forget()
                return None
            try:
                answer = call.perform(step) if isinstance(step, OfScript) else self._perform(step, error)
            except Exception as trouble:
                if not isinstance(step, effects.Attempt) or not self._owner.is_here:
                    raise  # a forked child takes no part in rounds: whatever it raises ends it
                end = self._carry_out(steps, call, self._kind_of(trouble), trouble)
                if end is End.FAILED:
                    raise
                return end
            # Here the exception is forgotten: its traceback would keep the old model's group alive.

    def _advance(self, steps: Generator[Effect, Any, E], answer: Answer) -> effects.Forget | OfScript | OfWorker | E:
        """Let the loop continue, with waits and reports, up to its next other effect, or to its end."""
        with self._changed:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    ended: E = end.value
                    return ended
                answer = None
                match step:
                    case effects.WaitForChange(for_verdict):
                        self._watch.waits_for_verdict = for_verdict
                        self._changed.wait(timeout=1.0)
                        self._agent_silence.look()
                    case effects.Say(report):
                        if report.HasField("worker_waiting"):
                            self._times.mark("waiting")
                            report.worker_waiting.left_at, self._left_at = self._left_at, ""
                        self._report(report)
                    case _:
                        return step

    def _perform(self, step: OfWorker, error: Exception | None) -> Answer:
        """Carry out an effect; returns the answer."""
        match step:
            case effects.Build():
                assert self._participant.assignment is not None, "a group is built in a round that was assigned"
                self._build(self._participant.assignment)
            case effects.Settle():
                self._group.settle()
            case effects.Stopped(loss, size):
                self._times.mark("stopped")
                if size:
                    logger.warning("failed in the first round of %d workers", size, exc_info=error)
                if loss:
                    logger.info("a peer is lost: %s", error or self._participant.abort_cause)
                    self._left_at = "" if error is None else wire_text(script_line(error))
            case effects.Describe():
                assert error is not None, "it has been raised"
                return str(error) if isinstance(error, UnprovenPeerError) else traceback_text(error)
            case effects.FirstBoundary():
                self._context.phase.change(Phase.STEP)
                assert self._watch.state is not None, "a boundary of a state that is bound"
                state = self._watch.state
                state.first_boundary()
                digest = with_modes(state.digest(committed=False), state.computes_in.text())
                self._report(self._times.first_boundary(self._participant.round_id, state.copied, digest))
            case effects.CompareState():
                assert self._watch.state is not None, "a boundary of a state that is bound"
                if digest := self._watch.state.digest(committed=False):
                    self._server.report(self._participant.compared(digest))
            case effects.Complain(how):
                self._complain(how)
        return None

    def _build(self, assignment: Assignment) -> None:
        self._context.phase.change(Phase.INIT)
        self._group.teardown()
        self._group.build(assignment, self._collective_timeout)
        self._times.mark("built")
        self._context.place.enter(assignment)

    def _kind_of(self, error: Exception) -> Raised:
        """What an exception is to the loop."""
        if isinstance(error, HostsUpdatedInterrupt):
            return Raised.HOSTS_UPDATED
        if isinstance(error, SwallowedInterruptError):
            return Raised.OWN  # though it may well be the consequence of a loss
        if isinstance(error, UnprovenPeerError):
            return Raised.UNPROVEN
        if isinstance(error, PeerLostError) or self._looks_like_peer_loss(error):
            return Raised.PEER_LOST
        return Raised.RUNTIME_ERROR if isinstance(error, RuntimeError) else Raised.OWN

    def _complain(self, how: Complaint) -> NoReturn:
        """The script has caught what a boundary raised, and continued: say so at once, for it may catch this, too."""
        what = "returned from its function" if how is Complaint.RETURNED else f"called again at {calling_location()}"
        participant = self._participant
        rank = participant.assignment.rank if participant.assignment else "?"
        kind = "HostsUpdatedInterrupt" if participant.abort_cause is None else "PeerLostError"
        error = SwallowedInterruptError(
            f"worker {self._worker_id} (rank {rank}) continued in a round that is over: the script caught {kind}, "
            "raised "
            f"by the boundary at {self._raised_at}, and {what}. Do not catch it, because it leads to the next round: "
            "around a boundary, catch neither Exception nor RuntimeError"
        )
        try:
            raise error
        except SwallowedInterruptError:
            self._report_failure(error)
            raise

    def _report_failure(self, error: BaseException) -> None:
        self._report(pb.Report(worker_failed=pb.WorkerFailed(traceback=traceback_text(error))))

    def _report(self, report: pb.Report) -> None:
        """Send a report with this worker's progress, because the next sign of life may come too late, or never."""
        report.progress.CopyFrom(self._watch.progress())
        self._server.report(report)


class AgentSilence:
    """Looks again and again whether the agent that this worker waits for still speaks: it may be gone without a trace.

    Args:
        last_word: when its last word came.
    """

    def __init__(self, last_word: Callable[[], float]) -> None:
        self._last_word = last_word
        self._heard = last_word()
        self._lease = Lease(SILENCE_BOUND, time.monotonic)

    def look(self) -> None:
        """Look once. It is looks that count: a word may lie unread if this process itself was stopped.

        Raises:
            SystemExit: the agent has been silent for too long; nothing would ever come.
        """
        if self._heard != self._last_word():
            self._heard = self._last_word()
            self._lease.renew()
        if self._lease.tick():
            logger.error("no message from the agent for %g s: this worker ends", SILENCE_BOUND)
            raise SystemExit(1)
