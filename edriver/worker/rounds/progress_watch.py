"""What is seen of the training thread from beside it, at each ping: how far it is, and whether it makes progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping

from edriver.model.stall_limits import Phase
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import duration, round_id_message
from edriver.worker.context import WorkerContext
from edriver.worker.reports import SamplesDone, checkpoints, commits
from edriver.worker.rounds.participant import Participant, Stage
from edriver.worker.rounds.step_times import NOTHING_REPORTED, StepTimer
from edriver.worker.state.state import State
from edriver.worker.watch.blocked import BlockedWatch
from edriver.worker.watch.lingering import EndWatch
from edriver.worker.watch.stall import StallWatch
from edriver.worker.watch.training_looks import TrainingLooks

logger = logging.getLogger("edriver.worker")


class ProgressWatch:
    """Watches the training thread from other threads: each number is current, or was a moment ago.

    Attributes:
        state: the state of the script's `run` call; None outside of one.
        checks: how often the script has checked for lost peers between boundaries.
        looks: samples what the training thread does.
        waits_for_verdict: whether it waits at a boundary for others, who may evaluate for an hour; not a stall.

    Args:
        context: the context of this process.
        participant: the worker's part in its rounds.
        step_times: measures the worker's steps.
        limits: the time limit of each phase, in seconds.
        report: sends a report to the driver.
        waiting_is_seen: whether the training thread waits where its collectives do.
    """

    def __init__(
        self,
        context: WorkerContext,
        participant: Participant,
        step_times: StepTimer,
        limits: Mapping[str, float],
        report: Callable[[pb.Report], None],
        waiting_is_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        self.state: State | None = None
        self.checks = 0
        self.waits_for_verdict = False
        self._said: SamplesDone | None = None
        self._context = context
        self._participant = participant
        self._step_times = step_times
        self._report = report
        self._stall = StallWatch(threading.main_thread(), limits)
        self._blocked = BlockedWatch(threading.main_thread())
        self._end = EndWatch(threading.main_thread())
        watched = _TrainingThread(self, context, participant, step_times, waiting_is_seen)
        self.looks = TrainingLooks(threading.main_thread(), watched, self._tell_progress)

    def look(self) -> None:
        """Report what keeps the training thread from making progress, or the process from ending."""
        self._look_for_stall()
        if self.state is None and (text := self._end.look()) is not None:
            logger.error("%s", text)

    @property
    def reported(self) -> Mapping[str, float]:
        """What the script has reported in rank 0. In others, and before there is a rank, it is shown nowhere."""
        place = self._context.place
        if self.state is None or not place.in_round or place.assignment.rank != 0:
            return NOTHING_REPORTED
        return self.state.reported

    def progress(self) -> pb.WorkerProgress:
        """This worker's progress."""
        state = self.state
        progress = pb.WorkerProgress()
        self._step_times.fill(progress)
        self.looks.fill(progress)
        if state is not None and progress.round_id.n:  # before its first sync, what it holds is not the run's
            self._said = state.samples_done()
        if self._said is not None:  # once the script has left `run`, what it said last
            progress.epoch, progress.samples_done, progress.samples = self._said
        progress.commits, progress.commit_bytes = commits.count, commits.nbytes
        progress.commit_duration.CopyFrom(duration(commits.seconds))
        progress.checkpoints, progress.checkpoint_bytes = checkpoints.count, checkpoints.nbytes
        progress.checkpoint_duration.CopyFrom(duration(checkpoints.seconds))
        progress.checkpoint_failures, progress.checkpoint_steps = checkpoints.failures, checkpoints.steps
        return progress

    def _tell_progress(self) -> None:
        self._report(pb.Report(progress_changed=pb.ProgressChanged(), progress=self.progress()))

    def _look_for_stall(self) -> None:
        participant, phase = self._participant, self._context.phase
        if participant.stage is not Stage.ASSIGNED or self.waits_for_verdict:
            return
        progress = (participant.round_id, participant.boundaries, self.checks, phase.changes)
        if (seconds := self._blocked.look(progress)) is not None:
            self._report(participant.blocked(seconds))
        if stall := self._stall.look(progress, phase.phase):
            stalled = pb.WorkerStalled(
                round_id=round_id_message(participant.round_id),
                phase=stall.phase,
                duration=duration(stall.seconds),
                stacks=stall.stacks,
            )
            self._report(pb.Report(worker_stalled=stalled))


class _TrainingThread:
    """What the looks have to know: see `training_looks.Watched`."""

    def __init__(
        self,
        watch: ProgressWatch,
        context: WorkerContext,
        participant: Participant,
        step_times: StepTimer,
        waiting_is_seen: Callable[[], bool],
    ) -> None:
        self._watch = watch
        self._context = context
        self._participant = participant
        self._step_times = step_times
        self._waiting_is_seen = waiting_is_seen

    @property
    def progress(self) -> Hashable:
        participant = self._participant
        if participant.stage is not Stage.ASSIGNED or self.phase is Phase.INIT:
            return None
        return participant.round_id, participant.boundaries

    @property
    def phase(self) -> Phase:
        return self._context.phase.phase

    @property
    def waits_for_verdict(self) -> bool:
        return self._watch.waits_for_verdict

    @property
    def usual_step(self) -> float | None:
        return self._step_times.usual

    @property
    def waiting_is_seen(self) -> bool:
        return self._waiting_is_seen()
