"""What a driver has ordered, as the journal remembers it: so that the next one finds out whether it would have.

The state of a driver follows from the events. The core of another release may decide otherwise on the same events, and
what it then believes is not what agents and workers were told. So a driver writes down what its core orders before it
does it, and the next one compares what its own core orders as it takes the events in again. The orders in their order
must be the same, not the events at which they come: those that the next driver gives beyond what was written were never
carried out, and go out now.

Compared is what makes a difference to those who carry an order out: not its cause, nor its words. Where orders differ,
the run is not taken over, and nothing has been changed. The release that had it can take it over, and writes a snapshot
as soon as it has; any driver writes one soon after an order, too (SNAPSHOT_DELAY in core_loop.py). In what follows a
snapshot there is nothing to compare, so the next release continues from there whatever it would have decided before.

So what can differ lies between the last snapshot and the death of the old driver: a second after an order, ten while
events keep arriving, and more where a snapshot takes long: the next one comes twenty times as long after it.
Workers train on meanwhile. Who is refused resumes with the old release, which writes a snapshot at once, kills it when
the run has been quiet for that long, and resumes with the new one. tests/sim/test_upgrades.py lets cores that decide
otherwise take over.

(Other ways were weighed. To let the new core decide on the events after the snapshot, and send what differs: it gives
the IDs of workers and rounds to others than those that have them, so a version would name two states, and an agent that
has acknowledged more orders than the new core has given is refused, with its workers. To follow the old orders against
the core's own decisions needs a second way to every state of the core. To start again from what agents report needs
reports of all that the core knows, offers and suspicions included, and costs the steps of members that are between two
rounds.)
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable
from typing import Final

from edriver.model import actions
from edriver.model.memory_checkpoint import MemoryCheckpoint
from edriver.model.plan import RoundPlan

_DIGEST_BYTES: Final = 8


class OtherOrderError(Exception):
    """A core orders something else than the one before did on the same events.

    Attributes:
        then: what was ordered; empty: nothing.
        now: what is; empty: nothing.
    """

    def __init__(self, then: str, now: str) -> None:
        super().__init__(f"{now or 'nothing'} is ordered, and it was {then or 'nothing'}")
        self.then, self.now = then, now


class OrderCheck:
    """Compares the orders of a replay with those that were given.

    Args:
        given: what was ordered, oldest first.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._given = deque(given)

    def compare(self, orders: Iterable[str]) -> None:
        """Take in what follows from the next event.

        Raises:
            OtherOrderError: it was something else.
        """
        for order in orders:
            if self._given and (then := self._given.popleft()) != order:
                raise OtherOrderError(then, order)

    def finish(self) -> None:
        """Check, after the last event, that no order is left.

        Raises:
            OtherOrderError: the journal has a further order.
        """
        if self._given:
            raise OtherOrderError(self._given[0], "")


def order_text(action: actions.Action, draws: int) -> str | None:
    """An order as the journal remembers it: its kind and digest; None if no one carries this action out.

    Args:
        action: the core's action.
        draws: the number of draws before it: the secret of a round is the next one.
    """
    parts = _parts(action, draws)
    if parts is None:
        return None
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=_DIGEST_BYTES)
    return f"{type(action).__name__} {digest.hexdigest()}"


def _parts(action: actions.Action, draws: int) -> tuple[object, ...] | None:
    match action:
        case actions.Explain() | actions.KeepCheckpoints():  # the latter says all again when anything changes
            return None
        case (
            actions.StartAgent(host, agent_id)
            | actions.StopAgent(host, agent_id)
            | actions.AbandonAgent(host, agent_id)
        ):
            return host, agent_id
        case actions.StartWorker(worker_id, host, slot):
            return worker_id, host, slot
        case actions.StopWorker(worker_id, host):
            return worker_id, host
        case actions.HostsUpdated(workers, round_id, number, result):
            return workers, round_id, number, int(result)
        case actions.StopAt(workers, round_id, number, boundary):
            return workers, round_id, number, boundary
        case actions.GoOn(workers, round_id, number):
            return workers, round_id, number
        case actions.Abort(workers, round_id) | actions.Finish(workers, round_id):
            return workers, round_id
        case actions.Leave(worker_id):
            return (worker_id,)
        case actions.SaveCheckpoint(worker_id, round_id):  # its number follows from the events alone
            return worker_id, round_id
        case actions.Skip(worker_id, ordinal):
            return worker_id, ordinal
        case actions.FindNewestCheckpoint(workers):
            return workers
        case actions.FinishRun(end):
            return (end.value,)
        case RoundPlan() as plan:
            seats = [(seat.worker_id, seat.host, seat.slot, seat.rank) for seat in plan.seats]
            members = plan.round_id, plan.ordinal, plan.version, seats, plan.store, plan.receivers
            further = () if plan.memory_checkpoint is None else (_memory_parts(plan.memory_checkpoint),)
            if plan.replica_size != 1:
                further = *further, plan.replica_size, plan.sources
            if plan.gradient_norm is not None:
                further = *further, plan.gradient_norm
            if plan.sharding is not None:
                further = *further, plan.sharding, plan.sources
            return *members, plan.checkpoint, plan.guarded, plan.fallback_size, draws, *further


def _memory_parts(start: MemoryCheckpoint) -> tuple[object, ...]:
    return start.checkpoint, start.layout.hex(), start.addresses, start.holders
