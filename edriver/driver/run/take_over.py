"""How a driver takes over a run that another has left: it takes in all that the other was given, and continues.

That rebuilds the core and every link to an agent: which orders were sent, with which numbers. So no open question needs
an answer: an interrupt whose verdict was due is one whose verdict is due. The core's clock goes on where it stopped, so
no deadline has passed meanwhile. Two rules make this hold: an agent's message is acknowledged only when the journal has
its event (`mark_durable` in wire/link.py), and an order is sent only after the event that it follows from was
committed. An agent that acknowledges what the journal does not explain, as after a power cut, is refused, and is lost.

The new driver's number is in its Welcome and in the IDs of the rounds that it forms; an agent follows no lower number
than one that it has followed.

An agent that was ordered and had not connected is given up, because nothing says whether it was started; the core
orders another. Adopted agents are not children of the new driver, so their end shows by their last message, or by their
silence. A broker asks an engine for what the run lacks, and counts on no earlier call, so the next driver's finds the
jobs and pods of the run by its ID. What it refuses ends no run that has been resumed. Agents that are Ray actors end
with the driver's Ray job: such runs have no journal.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.journal import Head, Journal
from edriver.driver.journal.orders import OtherOrderError
from edriver.driver.observe.records.log_end import LogEnd, log_end
from edriver.driver.run.stop_requests import handle_signals
from edriver.driver.run.taken_port import await_port
from edriver.driver.run.wiring import Wiring
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.system.record_folder import EVENTS_FILE

NEVER_STARTED: Final = "its agent had not connected when the previous driver ended"


class HeldClock:
    """Reads another clock, unless it is held: what is replayed gets the times at which it happened.

    Args:
        clock: the other one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: float | None = None

    def __call__(self) -> float:
        """The time."""
        return self._clock() if self._held is None else self._held

    def hold(self, time: float) -> None:
        """Read this from now on."""
        self._held = time

    def release(self) -> None:
        """Read the other clock again."""
        self._held = None


def replay(
    parts: Wiring, journal: Journal, records: Path | None, set_clocks: Callable[[float, float], None]
) -> actions.FinishRun | None:
    """Stand where the driver before has stopped. The journal is not changed, and nothing else is touched.

    Args:
        parts: of the run; they have seen nothing yet.
        journal: what the other driver has left.
        records: the folder of the run's records; None: it has none.
        set_clocks: has the clocks show these times, the core's and the one in seconds since the epoch.

    Returns:
        how the other driver had decided to end the run, if it had.

    Raises:
        JournalError: the journal cannot be read, or this driver would have ordered something else.
        ValueError: its snapshot is not valid.
    """
    if (snapshot := journal.snapshot()) is not None:
        clock, wall_clock, state = snapshot
        set_clocks(clock, wall_clock)
        parts.loop.restore(state)
    parts.agents.begin_replay()
    try:
        ended = parts.loop.replay(_timed(journal.entries(), set_clocks), journal.orders())
    except OtherOrderError as error:
        raise journal.decided_otherwise(error) from None
    for link in journal.links():
        parts.registry.resume(*link)
    # Events wait for a moment to be written, so the last ones were not.
    written = log_end(records / EVENTS_FILE) if records is not None else LogEnd()
    parts.recorder.events(parts.event_history.events.go_on_after(written.seq, written.time))
    parts.event_history.tracker.go_on_after(written.steps)
    return ended


class PortTakenError(Exception):
    """Another process has the port of the run, which continues without a driver. The message is a sentence.

    Attributes:
        exit_code: of this driver.
    """

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def await_port_of_run(address: str, port: int, bound: float, clock: Callable[[], float]) -> signal.Signals | None:
    """Wait until no other process has the port at which hosts look for the driver, or a signal says to wait no longer.

    Args:
        address: at which address; empty: at all of this machine.
        port: the port.
        bound: seconds to wait at most: --driver-timeout.
        clock: seconds, monotonic.

    Returns:
        the signal that has arrived meanwhile, if the port is free: it is the run's to handle. None if there was none.

    Raises:
        PortTakenError: another process still has it.
    """
    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def stop(number: signal.Signals) -> None:
        if not stopped.done():
            stopped.set_result(number)

    async def pause(seconds: float) -> bool:
        await asyncio.wait({stopped}, timeout=seconds)
        return stopped.done()

    handle_signals(stop)
    if await await_port(address, port, bound, pause, clock):
        return stopped.result() if stopped.done() else None
    if stopped.done():
        number = stopped.result()
        words = f"{number.name}: the run continues, and waits for another driver until --driver-timeout"
        raise PortTakenError(128 + number, words)
    raise PortTakenError(1, f"failed: another process has had port {port} for {bound:g} s (--driver-timeout)")


async def await_agents(parts: Wiring, head: Head, gone: str) -> None:
    """Wait for the agents of the driver before.

    Args:
        parts: of the run, after `replay`.
        head: of this driver.
        gone: why none of them can live; empty: they may.

    Raises:
        OSError: the port at which agents of other hosts look for the driver cannot be opened.
    """
    parts.inbox.put(events.DriverResumed(head.incarnation))
    hosts = parts.membership.roster.hosts
    adopted = []
    for host, agent_id, connected in parts.registry.await_agents():
        if gone or not connected:
            fault = AgentFault(AgentFaultKind.ENDED, gone or NEVER_STARTED)
            parts.inbox.put(events.AgentLost(host, agent_id, fault))
            continue
        adopted.append((host, agent_id))
        if parts.dial_in_hosts is not None and host in hosts:
            parts.dial_in_hosts.resume(host, hosts[host].slots, agent_id)
    await parts.agents.adopt(adopted)
    if head.port:
        await parts.endpoint.open()


def _timed(entries: Iterable[JournalEntry], set_clocks: Callable[[float, float], None]) -> Iterator[JournalEntry]:
    for entry in entries:
        set_clocks(entry.clock, entry.wall_clock)
        yield entry
