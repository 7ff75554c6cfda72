"""What is seen of the training thread from beside it, at each ping: how far it is, and whether it makes progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from edriver.common.wire import duration, round_id_message
from edriver.v1 import notification_pb2 as pb
from edriver.worker import training_phase
from edriver.worker.reports import commits
from edriver.worker.rounds.participant import Participant, Stage
from edriver.worker.rounds.step_times import StepTimes
from edriver.worker.state.state import State
from edriver.worker.watch.blocked import BlockedWatch
from edriver.worker.watch.lingering import EndWatch
from edriver.worker.watch.stall import StallWatch

logger = logging.getLogger("edriver.worker")


class ProgressWatch:
    """Looks at the training thread. Its numbers are read beside that thread: each is right, or was a moment ago.

    Attributes:
        state: the state of the script's `run` call; None outside of one.
        checks: how often the script has looked for bad news between boundaries.
        waits_for_verdict: whether it waits at a boundary for others, who may evaluate for an hour: no stall of its own.

    Args:
        participant: the worker's part in its rounds.
        step_times: how long its steps take.
        limits: seconds that each phase may last.
        report: says something to the driver.
    """

    def __init__(
        self,
        participant: Participant,
        step_times: StepTimes,
        limits: Mapping[str, float],
        report: Callable[[pb.Report], None],
    ) -> None:
        self.state: State | None = None
        self.checks = 0
        self.waits_for_verdict = False
        self._participant = participant
        self._step_times = step_times
        self._report = report
        self._stall = StallWatch(threading.main_thread(), limits)
        self._blocked = BlockedWatch(threading.main_thread())
        self._end = EndWatch(threading.main_thread())

    def look(self) -> None:
        """Report what keeps the training thread from making progress, or the process from ending."""
        self._look_for_stall()
        if self.state is None and (text := self._end.look()) is not None:
            logger.error("%s", text)

    def progress(self) -> pb.WorkerProgress:
        """This worker's progress."""
        state = self.state
        progress = pb.WorkerProgress()
        self._step_times.fill(progress)
        if state is not None and progress.round_id.n:  # before its first sync, what it holds is not the run's
            if samples := state.samples_done():
                progress.epoch, progress.samples_done, progress.samples = samples
            progress.reported.update(state.reported)
        progress.commits, progress.commit_bytes = commits.count, commits.nbytes
        progress.commit_duration.CopyFrom(duration(commits.seconds))
        return progress

    def _look_for_stall(self) -> None:
        participant, phase = self._participant, training_phase.current
        if participant.stage is not Stage.ASSIGNED or self.waits_for_verdict:
            return
        progress = (participant.round_id, participant.boundaries, self.checks, phase.changes)
        if (seconds := self._blocked.look(progress)) is not None:
            self._report(participant.blocked(seconds))
        if stall := self._stall.look(progress, phase.phase):
            stalled = pb.Stalled(
                round_id=round_id_message(participant.round_id),
                phase=stall.phase,
                duration=duration(stall.seconds),
                stacks=stall.stacks,
            )
            self._report(pb.Report(stalled=stalled))
