"""Who an agent is: what it must show, and for which workers it speaks. Kept beyond its end, for output comes late.

Its join config brings the agent its secret, or, where it dials in on its own, its first Welcome. The agent shows the
secret in each Hello and with each batch of output.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from edriver.v1 import agent_pb2


@dataclass(frozen=True, slots=True, eq=False)
class AgentIdentity:
    """One agent's identity.

    Attributes:
        host: the host it is for.
        agent_id: its id, never used for another.
        secret: what only it and the driver know; never to be logged.
        workers: all workers that it was ordered to start, each with its slot; it may report on no others.
        ranks: the (worker_id, rank) pairs of all rounds assigned to it.
    """

    host: str
    agent_id: int
    secret: bytes = field(repr=False)
    workers: dict[int, int] = field(default_factory=dict)
    ranks: set[tuple[int, int]] = field(default_factory=set)

    def is_proven_by(self, shown: bytes) -> bool:
        """Whether this is its secret; takes as long for any guess."""
        return hmac.compare_digest(self.secret, shown)

    def note(self, order: agent_pb2.ConnectResponse) -> None:
        """Note an order that is sent to the agent."""
        if order.HasField("start_worker"):
            self.workers[order.start_worker.worker_id] = order.start_worker.slot
        self.ranks.update((seat.worker_id, seat.rank) for seat in order.assign_round.seats)

    def may_have_written(self, line: agent_pb2.OutputLine) -> bool:
        """Whether a line names one of its own workers, in its slot, and no rank that this worker never had."""
        worker_id = line.worker_id
        return self.workers.get(worker_id) == line.slot and (
            not line.HasField("rank") or (worker_id, line.rank) in self.ranks
        )
