"""At the end of a run: the newest checkpoint in memory is written to disk before the agents end, which hold it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Final

from edriver.driver.core.disk_writes import Key
from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.driver.core.roster import Roster
from edriver.driver.feeds.inbound import Inbound, InboundMessage
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.console.output import ROUTINE
from edriver.model import events
from edriver.model.actions import KeepCheckpoints
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.ids import NO_ROUND
from edriver.model.records import Worker
from edriver.v1 import agent_pb2
from edriver.wire.orders import keep_message

WRITE_TIMEOUT: Final = 600.0
"""Seconds that this may take: a host may have hundreds of gigabytes. A second signal ends it."""

SILENCE_BOUND: Final = 30.0
"""Seconds after its lease for which a silent host is waited for: it may only be busy, or may have been stopped."""

_log = logging.getLogger("edriver.driver")


async def write_last_checkpoint(
    memory: MemoryCheckpoints,
    roster: Roster,
    inbox: Mailbox[Inbound],
    send: Callable[[str, agent_pb2.ConnectResponse], None],
    stop_workers: Callable[[Iterable[Worker]], None],
    hurry: asyncio.Event,
    bound: float = WRITE_TIMEOUT,
    silence_bound: float = SILENCE_BOUND,
) -> None:
    """Have hosts write the newest whole checkpoint, if it is not on disk yet, and wait for that.

    Workers that train are stopped first: what they made meanwhile would be lost, and the hosts have better to do.

    Args:
        memory: the checkpoints.
        roster: the hosts of the run.
        inbox: what comes from agents; what is not of checkpoints stays in it.
        send: sends an order to a host's agent.
        stop_workers: stops workers.
        hurry: set when the operator does not want to wait.
        bound: seconds that it may take.
        silence_bound: seconds after which a host whose agent is silent counts as lost.
    """
    memory.disk.urgent = True
    goal = memory.write_to_disk()
    if goal is None:
        return
    stop_workers(roster.live())
    others: list[Inbound] = []
    silences = _Silences(memory, roster, inbox, silence_bound)
    writing = asyncio.create_task(_write(memory, roster, inbox, send, goal, silences, others))
    hurried = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait({writing, hurried}, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            trouble = writing.result()
        else:
            trouble = "the run ends at once" if hurry.is_set() else f"it has taken longer than {bound:g} s"
    finally:
        hurried.cancel()
        writing.cancel()
        await asyncio.wait({writing, hurried})
        silences.end()
        for event in others:
            inbox.put(event)
    if trouble:
        _log.warning("the newest checkpoint, of step %d, is lost with this run: %s", goal[0].step, trouble)


class _Silences:
    """Gives up hosts whose agents stay silent. The core does not decide that any more: the run is over.

    A silence is counted second by second: what agents send while this machine is stopped is read before the next one.

    Args:
        memory: the checkpoints.
        roster: the hosts of the run. Those that are silent already count from now on.
        inbox: takes the losses.
        bound: seconds that an agent may be silent.
    """

    def __init__(self, memory: MemoryCheckpoints, roster: Roster, inbox: Mailbox[Inbound], bound: float) -> None:
        self._inbox = inbox
        self._bound = bound
        self._losses: dict[tuple[str, int], asyncio.TimerHandle] = {}
        for name, record in roster.hosts.items():
            if record.agent_id is not None and not record.connected and memory.held(name) is not None:
                self.begin(name, record.agent_id, AgentFault(AgentFaultKind.SILENT))

    def begin(self, host: str, agent_id: int, fault: AgentFault) -> None:
        """An agent is silent."""
        self.broken(host, agent_id)
        self._wait(events.AgentLost(host, agent_id, fault), self._bound)

    def _wait(self, loss: events.AgentLost, left: float) -> None:
        then = functools.partial(self._wait, loss, left - 1) if left > 1 else functools.partial(self._inbox.put, loss)
        handle = asyncio.get_running_loop().call_later(min(left, 1.0), then)
        self._losses[loss.host, loss.agent_id] = handle

    def broken(self, host: str, agent_id: int) -> None:
        """It has sent a message."""
        if (loss := self._losses.pop((host, agent_id), None)) is not None:
            loss.cancel()

    def end(self) -> None:
        """Give up no more hosts."""
        for loss in self._losses.values():
            loss.cancel()


async def _write(
    memory: MemoryCheckpoints,
    roster: Roster,
    inbox: Mailbox[Inbound],
    send: Callable[[str, agent_pb2.ConnectResponse], None],
    goal: Key,
    silences: _Silences,
    others: list[Inbound],
) -> str:
    """Order what is to be written, and take in what hosts report, until it is on disk.

    Returns:
        empty, or why it cannot be written.
    """
    said = None
    while True:
        for order in memory.orders(roster.hosts, roster.revision, NO_ROUND):
            if isinstance(order, KeepCheckpoints):
                send(order.host, agent_pb2.ConnectResponse(keep_checkpoints=keep_message(order)))
        disk = memory.disk
        if disk.writing is not None and disk.writing != said:
            said = disk.writing
            _log.log(ROUTINE, "writing the checkpoint of step %d from memory to disk", said[0].step)
        if disk.on_disk is not None and disk.on_disk >= goal:
            return ""
        if disk.writing is None:
            return memory.disk_trouble() or "the hosts that held it are lost"
        found = await inbox.get()
        if found is None:
            return "the run is over"
        match found.event if isinstance(found, InboundMessage) else found:
            case events.CheckpointsHeld(host, agent_id) as held:
                if roster.has_agent(host, agent_id):
                    memory.note(held)
            case events.CheckpointServerEnded(host, agent_id):
                if roster.has_agent(host, agent_id):
                    memory.server_ended(host)
            case events.AgentSilent(host, agent_id, fault):
                silences.begin(host, agent_id, fault)
            case events.AgentConnected(host, agent_id):
                silences.broken(host, agent_id)
            case events.AgentLost(host, agent_id):
                if roster.has_agent(host, agent_id):
                    memory.lose_host(host)
                others.append(found)
            case _:
                others.append(found)
