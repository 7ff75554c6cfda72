"""Journals that were really written, in each format that is read: a driver of this release goes on from them."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from edriver.driver.core.membership import Membership
from edriver.driver.journal.codec import Codec, Json, kinds_in
from edriver.driver.journal.formats import FORMAT, OLDEST_FORMAT, JournalPart, upgraded
from edriver.driver.journal.orders import OrderCheck
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.driver.observe.cause_text import cause_text
from edriver.driver.run import driver_state
from edriver.model import cause as why
from edriver.model import events
from edriver.model.cause import Cause, CauseKind, WorkerName
from edriver.model.ids import RoundId, Version
from edriver.model.settings import Settings
from tests.journal_story import SNAPSHOT_AT, Driver, story
from tests.recorded_journals import FOLDER, HEAD
from tests.sim.scanning import check_indexes

FORMATS = range(OLDEST_FORMAT, FORMAT + 1)

NAME = WorkerName(2, "b", 1, 1)
WRITTEN_NAME = {"WorkerName": {"worker_id": 2, "host": "b", "slot": 1, "rank": 1}}


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was dropped or renamed, and is not said by an upgrade, is an error here."""
    codec = driver_state.state_codec(strict=True)
    monkeypatch.setattr(driver_state, "state_codec", lambda: codec)


@pytest.mark.parametrize("number", FORMATS)
def test_a_driver_goes_on_from_a_recorded_journal(number: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    shutil.copyfile(FOLDER / f"format-{number}.sqlite3", path)
    path.chmod(0o600)
    driver = Driver()
    with closing(SqliteJournal.take_over(path)) as journal:
        assert journal.format == number
        assert journal.head == HEAD
        snapshot = journal.snapshot()
        assert snapshot is not None
        clock, wall_clock, state = snapshot
        assert driver.state.restore(state) is None
        check_indexes(driver.core)
        given = OrderCheck(journal.orders())
        entries = [*journal.entries()]
        for entry in entries:
            if entry.progress:
                driver.hear(entry.progress, entry.clock)
            driver.take(entry.event, entry.clock)
            check_indexes(driver.core)
            given.compare(driver.ordered)
        given.finish()
        assert list(journal.links()) == [(1, len([*story()]), 1)]
    told = [*story()]
    assert (clock, wall_clock) == (told[SNAPSHOT_AT - 1][0], 100.0 + told[SNAPSHOT_AT - 1][0])
    assert [(entry.clock, entry.event, entry.progress) for entry in entries] == told[SNAPSHOT_AT:]

    current = driver.core.rounds.current
    assert current is not None
    assert (current.plan.round_id, current.plan.version) == (RoundId(1, 2), Version(RoundId(1, 1), 7))
    assert sum(driver.history.view.round_counts.values()) == 2
    assert {worker.worker_id for worker in driver.core.roster.live()} == {1}
    assert driver.core.rounds.budgets.failures.total == 1
    assert [identity.host for identity in driver.registry.agents.identities] == ["a", "b", "b"]
    assert driver.core.roster.hosts["b"].drained_whole
    driver.take(events.UndrainRequested("b", None), 30.5)  # it goes on: the host is used again
    assert [order.partition(" ")[0] for order in driver.ordered] == ["StartAgent"]
    assert driver.registry.peer(4) is not None


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        pytest.param(
            {"kind": {"CauseKind": "silent"}, "worker": WRITTEN_NAME, "detail": {"Duration": {"seconds": 5.0}}},
            Cause(CauseKind.SILENT, NAME, detail=why.Duration(5.0)),
            id="silence-before-its-reason-was-known",
        ),
        pytest.param(
            {
                "kind": {"CauseKind": "stalled"},
                "worker": WRITTEN_NAME,
                "detail": {"Stall": {"phase": "step", "seconds": 9}},
            },
            Cause(CauseKind.STALLED, NAME, detail=why.Stall("step", 9)),
            id="stall-without-a-place",
        ),
        pytest.param(
            {"kind": {"CauseKind": "members-change"}, "detail": {"Change": {"joined": 0, "left": 2}}},
            Cause(CauseKind.MEMBERS_CHANGE, detail=why.Change(0, 2)),
            id="change-without-reasons",
        ),
    ],
)
def test_details_of_causes_that_have_got_more_fields_since_are_read(written: Json, cause: Cause) -> None:
    """Each is as format 6 has it from the releases before; what a core says of it has words."""
    codec = Codec(kinds_in(Cause))
    assert codec.decode({"Cause": written}) == cause
    assert codec.decode(codec.encode(cause)) == cause
    assert cause_text(cause)


@pytest.mark.parametrize(
    ("written", "event"),
    [
        ({"LeaseExpired": {"worker_id": 2, "lease": 5.0}}, events.LeaseExpired(2, 5.0)),
        ({"ExitOverdue": {"worker_id": 2, "seconds": 30.0}}, events.ExitOverdue(2, 30.0)),
    ],
)
def test_events_that_have_got_more_fields_since_are_read(written: Json, event: events.Event) -> None:
    assert Codec(kinds_in(events.Event)).decode(written) == event


def test_format_6_has_no_address_where_a_checkpoint_server_has_ended() -> None:
    """No run that was recorded had one."""
    codec = Codec(kinds_in(events.Event))
    held = {"host": "a", "agent_id": 1, "shards": [], "used": 0, "limit": 0, "trouble": "", "disk": None}
    written: Json = [{"CheckpointsHeld": {**held, "address": address}} for address in ("", "a:1")]
    read = [codec.decode(upgraded(JournalPart.EVENT, each, 6)) for each in written]
    assert read == [events.CheckpointServerEnded("a", 1), events.CheckpointsHeld("a", 1, "a:1")]


@pytest.mark.parametrize("number", FORMATS)
def test_all_that_a_core_knew_is_taken_over(number: int) -> None:
    for data in json.loads((FOLDER / f"format-{number}-cores.json").read_text()):
        core = Membership(Settings(np=1, min_np=1, max_np=9), now=0.0)
        driver_state.state_codec().load(core, upgraded(JournalPart.SNAPSHOT, data, number), "core")
        check_indexes(core)
        again = Membership(Settings(np=1, min_np=1, max_np=9), now=0.0)
        state = driver_state.state_codec().save(core=core)
        driver_state.state_codec().load(again, json.loads(json.dumps(state)), "core")
        assert driver_state.state_codec().save(core=again) == state
        if number == FORMAT:
            roster = data["core"]["Membership"]["roster"]["Roster"]
            assert [*core.roster.workers] == [worker_id for worker_id, _ in roster["workers"]["dict"]]
            assert [*core.roster.hosts] == [name for name, _ in roster["hosts"]["dict"]]
