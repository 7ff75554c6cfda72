"""How a driver takes over a run that another has left: it takes in all that the other was given, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from edriver.driver.core import actions, events
from edriver.driver.core.cause import AgentFault, AgentFaultKind
from edriver.driver.journal.entries import Entry
from edriver.driver.journal.journal import Head, Journal
from edriver.driver.observe.records.log_end import LogEnd, log_end
from edriver.driver.wiring import Wiring
from edriver.system.record_folder import EVENTS_FILE

NEVER_STARTED: Final = "its agent had not connected when the driver before this one ended"


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
        JournalError: the journal cannot be read.
    """
    parts.agents.begin_replay()
    ended = parts.loop.replay(_timed(journal.entries(), set_clocks))
    for link in journal.links():
        parts.registry.resume(*link)
    # Events wait for a moment to be written, so the last ones were not.
    written = log_end(records / EVENTS_FILE) if records is not None else LogEnd()
    parts.recorder.events(parts.event_history.events.go_on_after(written.seq, written.time))
    parts.event_history.tracker.go_on_after(written.steps)
    return ended


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


def _timed(entries: Iterable[Entry], set_clocks: Callable[[float, float], None]) -> Iterator[Entry]:
    for entry in entries:
        set_clocks(entry.clock, entry.wall_clock)
        yield entry
