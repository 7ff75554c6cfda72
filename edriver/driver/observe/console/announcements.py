"""What a run announces while it lasts: which worker was lost and why, and which round that ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from edriver.driver.core.roster import Roster
from edriver.driver.observe.cause_text import Line
from edriver.model import actions, events
from edriver.model.cause import AgentFault, Cause, CauseKind, Count, DrainTarget, Shortage, SlotTarget
from edriver.model.events import Loss, loss_of
from edriver.model.plan import RoundPlan
from edriver.model.records import WorkerState
from edriver.text.phrases import count_text

LESS_MISSING: Final = 0.1
"""By what part the number of workers that a run waits for must have changed since it was announced. The last nine are
announced one by one, and of thousands some eighty."""


class Announcements:
    """Turns a step of the core into lines. Each is announced once per change; rounds explain themselves (Explain)."""

    def __init__(self) -> None:
        self._announced_reasons: dict[str, AgentFault] = {}
        self._announced_shortage: Shortage | None = None

    def loss(self, event: events.Event, roster: Roster) -> Cause | None:
        """What an event means to observers; None: nothing.

        Args:
            event: what happened.
            roster: as it is before the core takes the event in.
        """
        match event:
            case events.WorkerExited(worker_id, 0):
                worker = roster.workers.get(worker_id)
                finished = worker is not None and worker.state is WorkerState.FINISHED
                return None if finished else self._worker_lost(event, roster)
            case (
                events.WorkerExited()
                | events.WorkerFailed()
                | events.LeaseExpired()
                | events.ExitOverdue()
                | events.WorkerStalled()
            ):
                return self._worker_lost(event, roster)
            case events.AgentLost(host, agent_id, fault):
                record = roster.hosts.get(host)
                if record is None or record.agent_id != agent_id or self._announced_reasons.get(host) == fault:
                    return None
                self._announced_reasons[host] = fault
                kind = CauseKind.HOST_LOST if record.connected else CauseKind.HOST_UNUSED
                return Cause(kind, host=host, detail=fault)
            case events.DrainRequested(host, slot, reason, requester):
                record = roster.hosts.get(host)
                known = record is not None and (slot is None or slot < record.slots)
                if record is None or not known or (record.drained_whole if slot is None else record.is_drained(slot)):
                    return None
                return Cause(CauseKind.DRAINED, host=host, detail=DrainTarget(slot, reason), requester=requester)
            case events.UndrainRequested(host, slot, requester):
                record = roster.hosts.get(host)
                drained = record is not None and (
                    record.drained_whole or bool(record.drained) if slot is None else record.is_drained(slot)
                )
                if not drained:
                    return None
                return Cause(CauseKind.UNDRAINED, host=host, detail=SlotTarget(slot), requester=requester)
            case events.ResizeRequested(size, requester):
                return Cause(CauseKind.RESIZED, detail=Count(size), requester=requester)
            case events.DriverResumed(incarnation):
                return Cause(CauseKind.DRIVER_RESUMED, detail=Count(incarnation))
            case events.AgentConnected(host):
                self._announced_reasons.pop(host, None)
                return None
            case _:
                return None

    def lines(self, loss: Cause | None, step: Sequence[actions.Action]) -> Iterator[Line]:
        """The lines for one step: the loss, the round that ended by it, and the core's reasons."""
        aborts = [action for action in step if isinstance(action, actions.Abort)]
        if loss and not any(loss.same_as(abort.cause) for abort in aborts):
            yield Line(loss)
        for abort in aborts:
            yield Line(abort.cause, abort.round_id)
        for action in step:
            if isinstance(action, actions.AbandonAgent | actions.Explain) and self._is_news(action.cause):
                yield Line(action.cause)

    def _is_news(self, cause: Cause) -> bool:
        """Whether it tells more than that a few more or less of many workers are ready."""
        announced, found = self._announced_shortage, cause.detail
        if cause.kind is not CauseKind.WORKERS_AWAITED or not isinstance(found, Shortage):
            self._announced_shortage = None
            return True
        if announced is not None and dataclasses.replace(announced, found=found.found) == found:
            missing = announced.needed - announced.found
            if abs(found.found - announced.found) < missing * LESS_MISSING:
                return False
        self._announced_shortage = found
        return True

    @staticmethod
    def _worker_lost(event: Loss, roster: Roster) -> Cause | None:
        worker = roster.workers.get(event.worker_id)
        if worker is None or not (worker.live or worker.ending):
            return None
        return loss_of(event, worker.name)


def lost_steps_text(plan: RoundPlan, lost: int, *, at_least: bool) -> str:
    """Where a round's state comes from, if steps are lost by that and no member has said so; empty: nothing is lost.

    Args:
        plan: the round's.
        lost: the number of steps that are to be made again.
        at_least: whether there may be more: the last ones before a driver died were reported to that one alone.
    """
    in_replicas = plan.replica_size > 1 or plan.sharding is not None
    steps = f"{'at least ' if at_least else ''}{count_text(lost, 'step')} lost"
    if plan.checkpoint:
        held = "not all positions of the state are held" if in_replicas else "no worker holds the state"
        place = "disk" if plan.memory_checkpoint is None else "memory"
        return f"{held}: it is loaded from {place}; {steps}"
    if in_replicas and lost > plan.steps_lost:  # a replica that was left out has an older state
        return f"the newest state is no longer held at all positions: training continues from an older one; {steps}"
    return ""
