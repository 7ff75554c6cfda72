"""The end of a round in restart mode that no failure demands: scripts have time to save first. Part of the core."""

from __future__ import annotations

from edriver.driver.core.actions import StopAt
from edriver.driver.core.cause import Cause
from edriver.driver.core.failures.worker_losses import WorkerLosses
from edriver.driver.core.mode import CheckpointWay
from edriver.driver.core.rounds.round import Interrupt, Round
from edriver.driver.core.run_state import RunState


class AgreedRestarts:
    """Ends rounds for a change of the members.

    Args:
        run: what the core knows.
        losses: aborts rounds.
    """

    def __init__(self, run: RunState, losses: WorkerLosses) -> None:
        self._run = run
        self._losses = losses
        self._cause: Cause | None = None

    def begin(self, current: Round, interrupt: Interrupt, cause: Cause) -> None:
        """End the round, which has members that are not wanted, or lacks some; all members have answered.

        At once where no script can be asked for a checkpoint; else they get a boundary at which to save.
        """
        if not interrupt.ways:
            self._losses.abort(current, cause)
            return
        run = self._run
        settings = run.settings
        by_call = CheckpointWay.CALL in interrupt.ways.values()
        patience = max(settings.elastic_timeout, settings.boundary_timeout) if by_call else settings.leave_grace
        self._cause = cause
        interrupt.boundary = interrupt.agree()
        interrupt.deadline = run.now + patience
        verdict = interrupt.number, interrupt.boundary
        run.actions.append(StopAt(current.order(current.members), current.plan.round_id, *verdict, cause))

    def look(self, current: Round, interrupt: Interrupt) -> None:
        """Stop all members once those that can save have had their time to, or the bound has passed.

        Where some save by a call, those that only handle a signal are not waited for: they may never report it.
        """
        assert self._cause is not None, "it has begun"
        ways = interrupt.ways.values()
        awaited_way = CheckpointWay.CALL if CheckpointWay.CALL in ways else CheckpointWay.SIGNAL
        awaited = {worker for worker, way in interrupt.ways.items() if way is awaited_way} & current.members
        if awaited <= interrupt.saved | current.done.keys() or self._run.now >= interrupt.deadline:
            self._losses.abort(current, self._cause)
