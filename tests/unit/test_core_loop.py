"""The driver's loop and its journal: what is written before what is done, and when a snapshot follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from edriver.driver.journal.codec import CodecError
from edriver.driver.journal.journal import Journal, JournalError, JournalRecord
from edriver.driver.journal.state import StateCodec
from edriver.driver.run import core_loop
from edriver.driver.run.core_loop import CoreLoop
from edriver.driver.run.driver_state import DriverState
from edriver.model import actions, events
from edriver.model.hosts import Host, HostSet
from tests.journal_story import Driver

HOSTS = events.HostsObserved(HostSet((Host("a", 1),)))
STOP = events.StopRequested("enough")


class FakeJournal:
    """Notes what happens to it, and can be full."""

    name, records_at_once, remote, wants_snapshot = "this", 1, False, False
    unwritable = Journal.unwritable

    def __init__(self, happened: list[str], full: bool) -> None:
        self._happened = happened
        self._full = full

    def append(self, turns: Sequence[JournalRecord]) -> None:
        """See Journal."""
        self._happened += [f"written {type(turn.entry.event).__name__}" for turn in turns if turn.entry]

    def append_orders(self, orders: Sequence[str]) -> None:
        """See Journal."""
        if self._full:
            raise JournalError("the disk is full")
        self._happened += [f"ordered {order.partition(' ')[0]}" for order in orders]

    def write_snapshot(self, _clock: float, _wall_clock: float, state: bytes) -> None:
        """See Journal."""
        assert json.loads(state)["core"]
        self._happened.append("snapshot")

    def discard(self) -> None:
        """See Journal."""
        self._happened.append("given up")


class Looked(CoreLoop):
    """Counts how often it looks for events."""

    looks = 0

    async def _next_events(self) -> list[Any]:
        self.looks += 1
        return await super()._next_events()


def run(
    monkeypatch: pytest.MonkeyPatch,
    *,
    full: bool = False,
    slow: bool = False,
    crowded: bool = False,
    backlog: int = 0,
    busy: int = 0,
) -> tuple[list[str], Looked]:
    """Give a loop a host and, once all that follows has happened, the request to stop.

    Args:
        monkeypatch: pytest's.
        full: whether the journal takes no orders.
        slow: whether each piece of a snapshot takes as long as the event loop may stand still,
        crowded: and whether the journal is so large that it must have one.
        backlog: how many events wait besides, each of which takes as long as others may wait for their turn.
        busy: how many events come besides, one by one, with half of SNAPSHOT_QUIET between two of them.
    """
    monkeypatch.setattr(core_loop, "SNAPSHOT_DELAY", 0.0)
    if not busy:
        monkeypatch.setattr(core_loop, "SNAPSHOT_QUIET", 0.0)
    happened: list[str] = []
    driver = Driver()
    driver.now = 0.0
    nothing = lambda *_: None  # noqa: E731

    def leave(_error: object) -> NoReturn:
        raise AssertionError("it has no reason to")

    def pieces(state: DriverState, ended: actions.FinishRun | None) -> Iterator[str]:
        if not happened.count("begun"):
            inbox.put(events.DiscoveryFailed("it arrives meanwhile"))
        happened.append("begun")
        for piece in written(state, ended):
            driver.now += core_loop.SNAPSHOT_SLICE
            yield piece

    async def work() -> Looked:
        stop = asyncio.get_running_loop().call_soon
        journal: Any = FakeJournal(happened, full)
        journal.wants_snapshot = crowded
        agents: Any = SimpleNamespace(start=lambda host, _: happened.append(f"started {host}"), connected=nothing)
        watchers: Any = SimpleNamespace(announce=nothing, events=nothing, forget_agent=nothing, stop_agent=nothing)
        loop = Looked(
            driver.core,
            inbox,
            driver.registry,
            agents,
            watchers,
            driver.history,
            watchers,
            watchers,
            journal,
            driver.draws,
            lambda: driver.now,
            lambda: driver.now,
            leave,
        )

        def end_when_it_waits(turns: int = 20) -> None:
            """After so many turns of the event loop: it needs two or three until it has nothing left to do."""
            if backlog:
                happened.append("others had a turn")
            if busy and not turns % 5:  # five turns of the event loop for each event and what follows from it
                driver.now += core_loop.SNAPSHOT_QUIET / 2
                inbox.put(events.DiscoveryFailed(f"after {turns} turns") if turns else events.Ticked())
            if turns:
                stop(end_when_it_waits, turns - 1)
            else:
                inbox.put(STOP)

        inbox.put(HOSTS)
        for number in range(backlog):
            inbox.put(events.DiscoveryFailed(f"for the {number}. time"))
        end_when_it_waits(5 * busy or 20)
        async with asyncio.timeout(60):
            assert isinstance(await loop.run(), actions.FinishRun)
        return loop

    def append(journal: FakeJournal, turns: Sequence[JournalRecord]) -> None:
        driver.now += core_loop.TURN
        appended(journal, turns)

    inbox, written, appended = driver.registry._inbox, DriverState.pieces, FakeJournal.append
    if backlog:
        monkeypatch.setattr(FakeJournal, "append", append)
    if slow:
        monkeypatch.setattr(DriverState, "pieces", pieces)
    return happened, asyncio.run(work())


def test_orders_are_written_before_they_are_carried_out_and_a_snapshot_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, _ = run(monkeypatch)
    assert happened == [
        "written HostsObserved",
        "ordered StartAgent",
        "started a",
        "snapshot",
        "written StopRequested",
        "ordered FinishRun",
    ]


def test_an_event_is_not_kept_waiting_for_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, _ = run(monkeypatch, slow=True)
    assert happened[3:6] == ["begun", "written DiscoveryFailed", "written StopRequested"]
    assert "snapshot" not in happened


def test_a_snapshot_waits_for_a_pause_between_events_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, _ = run(monkeypatch, busy=10)
    assert happened.count("written DiscoveryFailed") == 10
    assert "snapshot" not in happened  # there was no pause until the end
    longest = round(core_loop.SNAPSHOT_PATIENCE / core_loop.SNAPSHOT_QUIET * 2)
    for slow in (False, True):
        happened, _ = run(monkeypatch, busy=longest + 10, slow=slow)
        before = happened[: happened.index("snapshot")].count("written DiscoveryFailed")
        assert longest <= before <= longest + 2
    assert happened[happened.index("snapshot") - 1] == "begun", "an event came first"


def test_a_journal_that_is_too_large_has_its_snapshot_first(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, _ = run(monkeypatch, slow=True, crowded=True)
    assert happened.index("snapshot") < happened.index("written DiscoveryFailed")


def test_others_have_their_turns_however_many_events_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, _ = run(monkeypatch, backlog=5)
    waited = [what for what in happened if what in ("written DiscoveryFailed", "others had a turn")][:10]
    assert waited.count("written DiscoveryFailed") == 5
    assert (
        "others had a turn"
        in waited[waited.index("written DiscoveryFailed") : waited.index("written DiscoveryFailed") + 2]
    )


def test_a_journal_that_is_given_up_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, loop = run(monkeypatch, full=True)
    assert happened == ["written HostsObserved", "given up", "started a"]
    assert loop.looks == 2  # for each of the events: it does not look again and again for a snapshot that is due


def test_what_has_no_form_in_the_journal_costs_the_journal_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object, **_named: object) -> NoReturn:
        raise CodecError("a Thing does not belong in a journal")

    monkeypatch.setattr(StateCodec, "pieces", raise_error)
    happened, _ = run(monkeypatch)
    assert happened == ["written HostsObserved", "ordered StartAgent", "started a", "given up"]
    monkeypatch.undo()
    monkeypatch.setattr(FakeJournal, "append", raise_error)
    happened, _ = run(monkeypatch)
    assert happened == ["given up", "started a"]
