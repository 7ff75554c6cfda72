"""What the journal takes of a driver's time: `python -m benchmarks.journal_speed --hosts 1 100 1000`.

Hosts of eight slots form a round, all of whose agents and workers are known then. Prints one JSON object a size, in
processor time: microseconds to write an event down, and the orders of a turn; milliseconds to write a snapshot as JSON,
those of its longest piece, for which the event loop stands still, and those to put it into SQLite; its size; and
milliseconds in which another driver takes it over.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.scale import SLOTS, STEP
from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.core.membership import Membership
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.journal import Head, JournalRecord
from edriver.driver.journal.keyed_random import KeyedRandom
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.driver.observe.cause_text import cause_text
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.run.driver_state import DriverState
from edriver.model import actions, events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION
from edriver.model.plan import RoundPlan
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.wire.orders import orders_of

TURNS = 2000
"""Events, and turns with orders, that are written down for a mean."""


class Parts:
    """The parts of a driver that a snapshot holds.

    Args:
        hosts: how many hosts the run has.
    """

    def __init__(self, hosts: int) -> None:
        self._now = 0.0
        size = hosts * SLOTS
        draws = KeyedRandom(b"k" * 32)
        core = Membership(Settings(np=size, min_np=1, max_np=size), now=0.0, draw=draws.random)
        history = EventHistory(core, ProgressTracker(self._clock), self._clock)
        registry = AgentRegistry(Mailbox(10), self._clock, draw_secret=draws.secret)
        self.state = DriverState(core, history, Announcements(), registry, draws)

    def form(self, hosts: int) -> None:
        """Have all workers in a round, with the messages for it under way."""
        found = tuple(Host(f"host-{number}", SLOTS) for number in range(hosts))
        step = self._feed(events.HostsObserved(HostSet(found)))
        agents = [(action.host, action.agent_id) for action in step if isinstance(action, actions.StartAgent)]
        workers: list[int] = []
        for host, agent_id in agents:
            step = self._feed(events.AgentConnected(host, agent_id))
            workers += [action.worker_id for action in step if isinstance(action, actions.StartWorker)]
        for worker_id in workers:
            step = self._feed(events.WorkerWaiting(worker_id, 1, NO_VERSION, StoreAddress("host", 1), "digest"))
        assert any(isinstance(action, RoundPlan) for action in step)

    def _clock(self) -> float:
        return self._now

    def _feed(self, event: events.Event) -> list[actions.Action]:
        self._now += STEP
        core, history, announcements, registry, draws = self.state
        step = core.step(event, self._now)
        for action in step:
            if isinstance(action, actions.StartAgent):
                registry.expect(action.host, action.agent_id)
            for host, message in orders_of(action, core.roster.workers, self._now, draws.secret, cause_text):
                registry.send(host, message)
        history.take(event, step, None, announcements.lines(None, step))
        return step


def timed(what: Callable[[], object]) -> float:
    """The processor time that something takes, in seconds."""
    gc.collect()
    began = time.process_time()
    what()
    return time.process_time() - began


def measured(hosts: int, folder: Path) -> dict[str, Any]:
    """The figures for one size."""
    parts, others = Parts(hosts), Parts(hosts)
    parts.form(hosts)
    written: list[str] = []
    longest = 0.0

    def encode() -> None:
        nonlocal longest
        began = time.process_time()
        for piece in parts.state.pieces(None):
            longest = max(longest, time.process_time() - began)
            written.append(piece)
            began = time.process_time()

    encode_s = timed(encode)
    snapshot = "".join(written).encode()
    journal = SqliteJournal.create(folder / f"{hosts}.sqlite3", Head("5d2f01aa", (), "/", {}, b"k" * 32, ""))
    turn = [
        JournalRecord(
            JournalEntry(1.0, 2.0, events.WorkerWaiting(1, 1, NO_VERSION, StoreAddress("host", 1), "digest")), (1, 2, 3)
        )
    ]

    def write_events() -> None:
        for _ in range(TURNS):
            journal.append(turn)

    def write_orders() -> None:
        for _ in range(TURNS):
            journal.append_orders(["Abort 0123456789abcdef"])

    figures = {
        "hosts": hosts,
        "workers": hosts * SLOTS,
        "event_us": round(timed(write_events) / TURNS * 1e6, 1),
        "orders_us": round(timed(write_orders) / TURNS * 1e6, 1),
        "snapshot_ms": round(encode_s * 1e3, 1),
        "stands_still_ms": round(longest * 1e3, 1),
        "write_ms": round(timed(lambda: journal.write_snapshot(1.0, 2.0, snapshot)) * 1e3, 1),
        "snapshot_kib": len(snapshot) // 1024,
        "restore_ms": round(timed(lambda: others.state.restore(json.loads(snapshot))) * 1e3, 1),
    }
    journal.close()
    return figures


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--hosts", type=int, nargs="+", default=[1, 100, 1000])
    with tempfile.TemporaryDirectory() as folder:
        for hosts in flags.parse_args().hosts:
            print(json.dumps(measured(hosts, Path(folder))), flush=True)
