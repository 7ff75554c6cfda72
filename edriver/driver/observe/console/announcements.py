"""What an onlooker is told while a run goes on: who was lost and why, which round ended by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edriver.driver.core import actions, events
from edriver.driver.core.failures.script_error import script_error
from edriver.driver.core.roster import Roster, WorkerState
from edriver.driver.core.wording import place_text, raised_text, stall_text, worker_text
from edriver.text.phrases import count_text, exit_text


class Announcements:
    """Turns a step of the core into lines. Each is said once per change; rounds explain themselves (Explain)."""

    def __init__(self) -> None:
        self._said_of_host: dict[str, str] = {}

    def loss(self, event: events.Event, roster: Roster) -> str:
        """What an event means for those who watch; empty if nothing.

        Args:
            event: what happened.
            roster: as it is before the core takes the event in.
        """
        match event:
            case events.WorkerExited(worker_id, code, _, _, reason):
                return self._exit(roster, worker_id, code, reason)
            case events.WorkerFailed(worker_id, traceback):
                return self._worker_lost(roster, worker_id, raised_text(script_error(traceback).kind))
            case events.LeaseExpired(worker_id) | events.ExitOverdue(worker_id):
                return self._worker_lost(roster, worker_id, event.reason)
            case events.WorkerStalled(worker_id, _, phase, seconds):
                return self._worker_lost(roster, worker_id, stall_text(phase, seconds))
            case events.AgentLost(host, agent_id, reason):
                record = roster.hosts.get(host)
                if record is None or record.agent_id != agent_id or self._said_of_host.get(host) == reason:
                    return ""
                self._said_of_host[host] = reason
                return f"host {host} is lost: {reason}" if record.connected else f"host {host} is not used: {reason}"
            case events.DrainRequested(host, slot, reason):
                record = roster.hosts.get(host)
                known = record is not None and (slot is None or slot < record.slots)
                if record is None or not known or (record.drained_whole if slot is None else record.is_drained(slot)):
                    return ""
                return f"{place_text(host, slot)} is drained: {reason}"
            case events.UndrainRequested(host, slot):
                return f"{place_text(host, slot)} may be used again" if host in roster.hosts else ""
            case events.ResizeRequested(size):
                return f"at most {count_text(size, 'worker')} from now on: the operator wants it"
            case events.AgentConnected(host):
                self._said_of_host.pop(host, None)
                return ""
            case _:
                return ""

    def lines(self, loss: str, step: Sequence[actions.Action]) -> Iterator[str]:
        """The lines for one step: the loss, the round that ended by it, and the core's reasons."""
        aborts = [action for action in step if isinstance(action, actions.Abort)]
        if loss and not any(abort.cause.startswith(loss) for abort in aborts):
            yield loss
        for abort in aborts:
            yield f"round {abort.round_id} ended: {abort.cause}"
        for action in step:
            if isinstance(action, actions.AbandonAgent):
                yield f"host {action.host} is lost: {action.reason}"
            elif isinstance(action, actions.Explain):
                yield action.reason

    def _exit(self, roster: Roster, worker_id: int, code: int, reason: str) -> str:
        if code:
            return self._worker_lost(roster, worker_id, reason or exit_text(code))
        worker = roster.workers.get(worker_id)
        if worker is None or worker.state is WorkerState.FINISHED:
            return ""
        return self._worker_lost(roster, worker_id, f"{exit_text(0)} before its edriver.run was done")

    @staticmethod
    def _worker_lost(roster: Roster, worker_id: int, how: str) -> str:
        worker = roster.workers.get(worker_id)
        if worker is None or not (worker.live or worker.ending):
            return ""
        return f"{worker_text(worker)} {how}"
