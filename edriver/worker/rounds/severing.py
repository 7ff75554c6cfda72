"""Freeing the training thread of a round that has been aborted: severing again and again until it has left."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from edriver.model.ids import RoundId
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message
from edriver.worker.backend.gloo.cutting import Cut
from edriver.worker.context import MicroBatch
from edriver.worker.rounds.group import Group
from edriver.worker.rounds.participant import Participant, Stage
from edriver.worker.watch.stall import stacks
from edriver.worker.watch.stuck import StuckWatch, in_collective

logger = logging.getLogger("edriver.worker")

SEVER_INTERVAL = 0.03
"""Seconds between attempts to free a training thread that is still somewhere in the aborted round."""

MESSAGE_INTERVAL = 0.003
"""The same while a message is under way between living members."""

STUCK_BOUND = 1.0
"""Seconds after which a training thread that still sits in a collective of an aborted round is beyond help."""

SPIN_BOUND = 10.0
"""The same with a GPU: NCCL spins while it waits, so it is not seen that the thread does nothing."""

FINISH_BOUND = 10.0
"""Seconds that a worker may take to finish a micro-batch of a round that is over. The others wait for it, and the next
round forms without it if it takes 30 s (Settings.rejoin_timeout)."""

SWALLOWED_REPORT_DELAY = 5.0
"""Seconds after which a training thread that is still in an aborted round, but not stuck, is shown."""


class Severing:
    """Severs aborted rounds, each from a separate thread.

    Args:
        participant: knows which round the training thread is in.
        changed: the lock of `participant`.
        micro_batch: that the training thread computes.
        group: the process group.
        report: sends a report to the driver.
    """

    def __init__(
        self,
        participant: Participant,
        changed: threading.Condition,
        micro_batch: MicroBatch,
        group: Group,
        report: Callable[[pb.Report], None],
    ) -> None:
        self._participant = participant
        self._changed = changed
        self._micro_batch = micro_batch
        self._group = group
        self._report = report

    def begin(self, round_id: RoundId, replica_is_whole: bool) -> None:
        """Sever a round at once, and continue with that in the background. On the notification thread.

        Args:
            round_id: the round.
            replica_is_whole: whether the lost worker is known to be of another replica than this one's. Then a
                micro-batch that only this one's takes part in is finished first.
        """
        if not replica_is_whole:
            self._micro_batch.end()
        cut = self._sever(round_id)
        arguments = round_id, replica_is_whole, cut
        threading.Thread(target=self._free, args=arguments, name="edriver-sever", daemon=True).start()

    def _sever(self, round_id: RoundId) -> Cut:
        return self._group.sever(round_id, spare_replica=self._micro_batch.is_finished)

    def _free(self, round_id: RoundId, replica_is_whole: bool, cut: Cut) -> None:
        """Sever again until the training thread has left the round: it may just have opened further connections."""
        finished_by = time.monotonic() + FINISH_BOUND
        while self._micro_batch.is_finished and not self._left(round_id, SEVER_INTERVAL):
            if time.monotonic() >= finished_by:
                self._micro_batch.end()
            cut = self._sever(round_id)
        self._free_at_once(round_id, cut)
        # Others of this replica may wait for it in a micro-batch that they have begun, and this one has not.
        while replica_is_whole and self._group.sever(round_id).under_way:
            time.sleep(SEVER_INTERVAL)

    def _free_at_once(self, round_id: RoundId, cut: Cut) -> None:
        watch = StuckWatch(threading.main_thread(), STUCK_BOUND)
        reported = False
        began = time.monotonic()
        said_at = began + SWALLOWED_REPORT_DELAY
        while not self._left(round_id, MESSAGE_INTERVAL if cut.under_way else SEVER_INTERVAL):
            if time.monotonic() >= said_at:
                said_at = math.inf
                text = "the script is still in round %s, which is over: does it catch RuntimeError around a step?\n%s"
                logger.error(text, round_id, stacks(threading.main_thread()))
            cut = self._group.sever(round_id)
            if cut.under_way:
                continue  # it may well wait for that
            spins = not self._group.gloo_only and time.monotonic() > began + SPIN_BOUND and in_collective(watch.ident)
            if not reported and (spins or watch.stuck(cut_off=not cut.waiting and self._group.gloo_only)):
                # The driver has this worker killed, unless it is the last one that holds the state.
                logger.error("a collective of the aborted round cannot be freed")
                self._report(pb.Report(worker_stuck=pb.WorkerStuck(round_id=round_id_message(round_id))))
                reported = True

    def _left(self, round_id: RoundId, patience: float) -> bool:
        """Whether the training thread has left the round; waits so many seconds for that."""
        participant = self._participant
        with self._changed:
            return self._changed.wait_for(
                lambda: participant.stage not in (Stage.ASSIGNED, Stage.DONE) or participant.round_id != round_id,
                timeout=patience,
            )
