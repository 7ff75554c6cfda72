"""A message of an agent's on its way to the core."""

from __future__ import annotations

from typing import NamedTuple

from edriver.model import events


class InboundMessage(NamedTuple):
    """What an agent has sent, and may forget once it is durable at the driver: see `AgentRegistry.mark_durable`.

    Attributes:
        event: what it means to the core; None: nothing.
        agent_id: the agent.
        seq: the message's number.
        acknowledged: the number of the driver's last message that the agent had then.
        progress: the worker's progress with which a stretch of its training has ended, as a serialized WorkerHeartbeat;
            empty: none has.
    """

    event: events.Event | None
    agent_id: int
    seq: int
    acknowledged: int
    progress: bytes = b""

    @property
    def link(self) -> tuple[int, int, int]:
        """The numbers of the link to the agent, which the journal keeps with the event."""
        return self.agent_id, self.seq, self.acknowledged


Inbound = events.Event | InboundMessage
"""What waits for the core."""
