"""What follows when a worker is lost: its failure is recorded, its round aborted, its slot rests. Part of the core.

A failure counts against the slot in which it happened, unless the cause lies elsewhere: the worker ended after its
round had lost a peer, or cannot be freed from a collective of that round; it had an order to leave; its host is drained
or gone from discovery; or its agent was lost. An exception of the script's own always counts, unless a resize is to
blame. What the end of a process counts as is decided once it is reaped, for only then is the reason known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edriver.driver.core.failures.failure_log import FailureLog
from edriver.driver.core.placement import Placement
from edriver.driver.core.roster import Roster
from edriver.driver.core.round_control import RoundControl
from edriver.model import events
from edriver.model.actions import Action, StopWorker
from edriver.model.cause import AgentFault, Cause, CauseKind
from edriver.model.events import loss_of
from edriver.model.records import Worker, WorkerState, WorkerStep
from edriver.model.settings import Settings


@dataclass(slots=True, eq=False)
class WorkerLosses:
    """Takes lost workers out of the run. It keeps nothing itself.

    Attributes:
        settings: the operator's limits.
        roster: the hosts and workers.
        placement: which slots rest.
        failures: where failures are recorded.
        rounds: who is in a round.
    """

    settings: Settings
    roster: Roster
    placement: Placement
    failures: FailureLog
    rounds: RoundControl

    def lose(
        self,
        worker: Worker,
        cause: Cause,
        now: float,
        end: events.WorkerExited | None = None,
        slot_at_fault: bool = True,
    ) -> list[Action]:
        """The worker has failed. Its round, if it is in one, is void; its slot rests if the fault may be the slot's.

        One whose place is being taken away may well die of that: it is a preemption's, unless its script raised.
        """
        cause = replace(cause, preempted=not worker.traceback and not self.roster.keeps(worker))
        self.failures.note_lost(worker, cause, end)
        if slot_at_fault and not cause.preempted and not self.rounds.size_is_to_blame(worker.worker_id, cause, now):
            self._charge(worker, cause, now)
        if worker.state is WorkerState.FINISHED:
            actions = self.rounds.fail_late(worker.worker_id, cause)
        else:
            actions = self.rounds.lose_member(worker.worker_id, cause, now)
        self.roster.move(worker, WorkerStep.STOP)
        return actions

    def kill(self, worker: Worker, cause: Cause, now: float, slot_at_fault: bool = True) -> list[Action]:
        """End a worker that is alive but cannot make progress."""
        self.rounds.await_exit(worker.worker_id)
        lost = self.lose(worker, cause, now, slot_at_fault=slot_at_fault)
        return [*lost, StopWorker(worker.worker_id, worker.host, grace=0.0)]

    def lose_agent(self, host: str, agent_id: int, fault: AgentFault, now: float) -> list[Action]:
        """An agent is lost, and with it all workers of its host. One that has been replaced is ignored."""
        actions: list[Action] = []
        for worker in self.placement.agent_lost(host, agent_id, fault, now):
            if worker.live:
                cause = Cause(CauseKind.LOST_WITH_HOST, worker.name, detail=fault)
                actions += self.lose(worker, cause, now, slot_at_fault=False)
            else:
                self.rounds.lost_with_host(worker.worker_id)
            self.remove(worker)
        return actions

    def ending(self, worker: Worker, event: events.WorkerEnding, now: float) -> list[Action]:
        """A worker's process has ended, and is not reaped yet: lost, if it was inside a `run` that is not over."""
        self.rounds.trainer_ended(worker.worker_id)
        self.roster.trainer_ended(worker, now + self.settings.leave_grace)
        if not worker.in_run:
            return []
        self.roster.note_ending(worker)
        return self.lose(worker, loss_of(event, worker.name), now, slot_at_fault=not self._ends_of_its_round(worker))

    def exited(self, worker: Worker, event: events.WorkerExited, now: float) -> list[Action]:
        """A worker's process has ended: after its function had returned, as it should, or lost."""
        self.rounds.note_step(worker.worker_id, event.step)
        cause = loss_of(event, worker.name)
        if cause.kind is CauseKind.COLLECTIVES_DIFFER:
            self.rounds.note_mismatch(cause)
        if worker.unexplained:
            self.roster.await_exit_code(worker, False)
            if worker.stop_at is None:  # else this run stopped a command that still ran after its training process
                self.placement.quarantine.worker_failed(worker, now)
            else:
                self._charge(worker, cause, now)
        if not worker.live:
            self.failures.note_exited(worker, cause, event)
        elif event.code == 0 and (
            worker.state is WorkerState.FINISHED or self.rounds.complete_member(worker.worker_id, now)
        ):
            self.roster.slot_completed(worker)
            self.rounds.process_ended(worker.worker_id)
        else:
            return self.lose(worker, cause, now, event, slot_at_fault=not self._ends_of_its_round(worker))
        return []

    def remove(self, worker: Worker) -> None:
        """A worker's process is gone, and nothing follows from it any more."""
        assert not self.rounds.has_member(worker.worker_id), f"worker {worker.worker_id} is in a round"
        self.roster.remove(worker.worker_id)

    def _charge(self, worker: Worker, cause: Cause, now: float) -> None:
        """Count its end against its slot and its host."""
        quarantine = self.placement.quarantine
        if cause.kind is CauseKind.ENDED:
            self.roster.await_exit_code(worker, True)
        elif cause.killed_from_outside:
            quarantine.worker_killed(worker, now)
        else:
            quarantine.worker_failed(worker, now)

    def _ends_of_its_round(self, worker: Worker) -> bool:
        """Whether the worker's end follows from what its round has met, and not from its slot."""
        current = self.rounds.current
        return current is not None and current.explains_exit(worker.worker_id)
