"""Snapshots of a driver's state: what they hold, what they refuse, and that they take the place of events."""

from __future__ import annotations

import json
import pickle
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from edriver.driver.core.membership import Membership
from edriver.driver.journal.codec import CodecError
from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.journal import SNAPSHOT_BYTES, SNAPSHOT_SHARE, Head, JournalRecord
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.driver.journal.state import PIECE, StateCodec
from edriver.driver.observe.event_buffer import EventBuffer
from edriver.driver.observe.round_events import SNAPSHOT_MEMBERS
from edriver.driver.run.driver_state import state_codec
from edriver.model import actions, events
from edriver.model.cause import Cause, CauseKind
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import RoundPlan
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, status_pb2
from edriver.wire.link import Link
from tests.journal_story import Driver, story
from tests.sim.random_events import RandomEvents
from tests.sim.scanning import check_indexes

HEAD = Head("5d2f01aa", (), "/", {}, b"k" * 32, "")
EVENT = JournalEntry(1.0, 2.0, events.DrainRequested("a", None, "x" * 1000, "me"))


def test_a_snapshot_takes_the_place_of_the_events_before_it(tmp_path: Path) -> None:
    first = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    assert first.snapshot() is None
    first.append([JournalRecord(EVENT)])
    first.write_snapshot(3.0, 4.0, b'{"a": 1}')
    first.append([JournalRecord(JournalEntry(5.0, 6.0, events.Ticked()), (7, 1, 0))])
    first.close()
    then = SqliteJournal.take_over(first.path)
    assert then.snapshot() == (3.0, 4.0, {"a": 1})
    assert list(then.entries()) == [JournalEntry(5.0, 6.0, events.Ticked())]
    assert list(then.links()) == [(7, 1, 0)]
    then.close()


def test_the_journal_of_a_long_run_does_not_grow(tmp_path: Path) -> None:
    journal = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    snapshots = 0
    for _ in range(5 * SNAPSHOT_BYTES // 1000):
        journal.append([JournalRecord(EVENT)])
        if journal.wants_snapshot:
            journal.write_snapshot(0.0, 0.0, b"s" * 1000)
            snapshots += 1
    assert 3 <= snapshots <= 7
    journal.close()
    assert journal.path.stat().st_size < 3 * SNAPSHOT_BYTES


def test_large_snapshots_are_rare(tmp_path: Path) -> None:
    journal = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    journal.write_snapshot(0.0, 0.0, bytes(SNAPSHOT_BYTES))
    for _ in range(2 * SNAPSHOT_BYTES // 1000):
        journal.append([JournalRecord(EVENT)])
    assert not journal.wants_snapshot
    assert SNAPSHOT_SHARE > 2
    journal.close()


# ---- owners and data -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Item:
    """Data that changes."""

    count: int
    names: tuple[str, ...] = ()


class Part:
    """A part of another owner."""

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=3)


class Whole:
    """An owner, which refers to itself, to a clock, and to what follows from its items."""

    STATE = ("items", "part")

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.items: dict[str, Item] = {}
        self.part = Part()
        self.counts: dict[int, str] = {}
        self.clock = clock

    def derive(self) -> None:
        """Find what follows from the items."""
        self.counts = {item.count: name for name, item in self.items.items()}


class Outer:
    """An owner that refers to another's part."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self.total = 0
        self.at: float | None = None


CODEC = StateCodec([Item])


def saved() -> Any:
    whole = Whole()
    whole.items = {"a": Item(1, ("x",)), "b": Item(2)}
    whole.part.latest.extend([1.0, 2.0, 3.0])
    outer = Outer(whole)
    outer.total, outer.at = 5, 1.5
    return json.loads(json.dumps(CODEC.save(whole=whole, outer=outer)))


def test_owners_take_over_what_others_of_their_kind_had() -> None:
    state = saved()
    assert state["outer"] == {"Outer": {"total": 5, "at": 1.5}}  # what belongs to another is not in it
    assert state["types"] == {"Item": ["count", "names"]}
    clock = lambda: 9.0  # noqa: E731
    whole = Whole(clock)
    outer, part = Outer(whole), whole.part
    CODEC.load(whole, state, "whole")
    CODEC.load(outer, state, "outer")
    assert whole.items == {"a": Item(1, ("x",)), "b": Item(2)}
    assert whole.counts == {1: "a", 2: "b"}
    assert whole.part is part
    assert list(part.latest) == [1.0, 2.0, 3.0]
    assert part.latest.maxlen == 3
    assert whole.clock is clock
    assert (outer.total, outer.at) == (5, 1.5)


def of_another_release() -> Any:
    """With another attribute in place of one, and another field in place of one."""
    state = saved()
    del state["outer"]["Outer"]["total"]
    state["outer"]["Outer"]["colour"] = {"Colour": [7]}
    state["types"]["Item"] = ["count", "size"]
    for _, item in state["whole"]["Whole"]["items"]["dict"]:
        item["Item"][1] = {"Size": {"of": [[]]}}
    return state


def test_what_another_release_has_more_or_less_is_no_error() -> None:
    state = of_another_release()
    whole = Whole()
    outer = Outer(whole)
    CODEC.load(whole, state, "whole")
    CODEC.load(outer, state, "outer")
    assert whole.items == {"a": Item(1), "b": Item(2)}
    assert (outer.total, outer.at) == (0, 1.5)


def test_what_was_dropped_without_an_upgrade_is_found_by_tests() -> None:
    strict = StateCodec([Item], strict=True)
    with pytest.raises(CodecError, match="Outer no longer has colour"):
        strict.load(Outer(Whole()), of_another_release(), "outer")
    with pytest.raises(CodecError, match="Item no longer has size"):
        strict.load(Whole(), of_another_release(), "whole")


def test_data_that_changes_is_reached_in_one_way() -> None:
    whole = Whole()
    whole.items["a"] = whole.items["b"] = Item(1)
    with pytest.raises(CodecError, match="a Item is reached in two ways"):
        CODEC.save(whole=whole)


def test_a_large_state_is_written_in_pieces_that_are_the_same_json() -> None:
    whole, outer = Whole(), Outer(Whole())
    whole.items = {f"item {n}": Item(n, ("x",)) for n in range(10 * PIECE)}
    pieces = [*CODEC.pieces(whole=whole, outer=outer)]
    assert max(map(len, pieces)) < 2 * sum(map(len, pieces)) / 10
    assert json.loads("".join(pieces)) == CODEC.save(whole=whole, outer=outer)
    assert [json.loads(piece) for piece in CODEC.pieces(["whole"], whole=whole) if len(piece) > 100] == [
        CODEC.save(whole=whole)["whole"]
    ]
    after = Whole()
    CODEC.load(after, json.loads("".join(pieces)), "whole")
    assert after.items == whole.items


EVENTS = [status_pb2.Event(seq=n, text="x" * n) for n in range(3)]


@pytest.mark.parametrize("value", [EVENTS, deque(EVENTS), dict(enumerate(EVENTS)), [], {}, [*EVENTS, 7], EVENTS[:1]])
def test_messages_of_one_type_are_one_text(value: Any) -> None:
    state = CODEC.save(value=value)
    assert CODEC.read(state, "value") == value
    assert json.dumps(state).count("edriver.v1.Event") == (3 if 7 in value else bool(value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"list": {"edriver.v1.Event": [[1], ""]}},
        {"list": {"edriver.v1.Event": [[-1, 1], ""]}},
        {"list": {"edriver.v1.Event": [7, ""]}},
        {"list": {"edriver.v1.Event": [[2], "////"]}},
        {"list": {"edriver.v1.Event": []}},
        {"list": {"edriver.v1.Nothing": [[], ""]}},
        {"list": {"subprocess.Popen": [[], ""]}},
        {"dict": {"keys": [1, 2], "items": {"edriver.v1.Event": [[0], ""]}}},
        {"dict": {"keys": [1]}},
        {"dict": {}},
    ],
)
def test_messages_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        7,
        [],
        {},
        {"Outer": {}},
        {"Whole": []},
        {"Whole": {}, "Outer": {}},
        {"Whole": {"items": 7}},
        {"Whole": {"items": {"list": []}}},
        {"Whole": {"items": {"dict": [["a", {"Item": ["1", []]}]]}}},
        {"Whole": {"items": {"dict": [["a", {"Item": [1]}]]}}},
        {"Whole": {"items": {"dict": [["a", {"Item": {"count": 1}}]]}}},
        {"Whole": {"items": {"dict": [["a", {"Outer": {}}]]}}},
        {"Whole": {"items": {"dict": [[{"list": []}, 1]]}}},
        {"Whole": {"part": {"Part": {"latest": "x"}}}},
        {"Whole": {"part": {"subprocess.Popen": {"args": "true"}}}},
    ],
)
def test_a_state_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(CodecError):
        CODEC.load(Whole(), {"types": {"Item": ["count", "names"]}, "whole": wrong}, "whole")


@pytest.mark.parametrize("wrong", [None, [], {}, {"types": []}, {"types": {"Item": 7}}, {"types": {"Item": [7]}}])
def test_a_snapshot_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(CodecError, match="it is not a state"):
        CODEC.load(Whole(), wrong, "whole")


def test_what_is_no_data_is_not_written() -> None:
    for value in (print, object(), Path("/"), pickle):
        with pytest.raises(CodecError, match="does not belong in a journal"):
            CODEC.encode([value])


# ---- the driver's own state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_core_goes_on_from_data_as_if_nothing_had_happened(seed: int) -> None:
    run = RandomEvents(seed)
    run.run(random.Random(seed).randint(1, 150))
    state = json.dumps(state_codec().save(core=run.core))
    core = Membership(run._settings, now=0.0)
    state_codec(strict=True).load(core, json.loads(state), "core")
    check_indexes(core)
    assert core.next_deadline == run.core.next_deadline
    assert json.dumps(state_codec().save(core=core)) == state


def without_rate(told: list[bytes]) -> list[status_pb2.Event]:
    """What observers are told, without the rate of a worker's steps: it needs two reports."""
    events_told = [*map(status_pb2.Event.FromString, told)]
    for event in events_told:
        if event.HasField("worker"):
            event.worker.ClearField("step_rate")
    return events_told


@pytest.mark.parametrize("at", range(1, len([*story()])))
def test_a_driver_goes_on_from_data_as_if_nothing_had_happened(at: int) -> None:
    """Also what observers are told afterwards is the same, whenever the snapshot is taken, but for workers' rates."""
    first, second = Driver(), Driver()
    events_of_a_run = [*story()]
    for now, event, progress in events_of_a_run[:at]:
        if progress:
            first.hear(progress, now)
        first.take(event, now)
    ended = actions.FinishRun(actions.RunEnd.DONE, Cause(CauseKind.SUCCESS)) if at == 5 else None
    state = first.state.to_bytes(ended)
    second.now = first.now
    assert second.state.restore(json.loads(state)) == ended
    assert second.state.to_bytes(ended) == state
    assert second.core.next_deadline == first.core.next_deadline
    for now, event, progress in events_of_a_run[at:]:
        if progress:
            assert without_rate(second.hear(progress, now)) == without_rate(first.hear(progress, now))
        assert without_rate(second.take(event, now)) == without_rate(first.take(event, now))
        assert second.ordered == first.ordered
    saved, saved_first = (json.loads(driver.state.to_bytes(None)) for driver in (second, first))
    for part in ("core", "announcements", "agents", "draws"):
        assert saved[part] == saved_first[part]
    assert second.history.view.round_counts == first.history.view.round_counts


def heartbeat(worker_id: int, n: int) -> bytes:
    made = agent_pb2.WorkerHeartbeat(worker_id=worker_id, pid=7)
    made.progress.round_id.incarnation = made.progress.round_id.n = 1
    made.progress.boundaries = n
    made.progress.boundary_time.FromMilliseconds(106_000 + 1000 * n)
    made.progress.watched_duration.FromSeconds(n)
    made.progress.waiting_duration.FromSeconds(n if worker_id == 1 else 0)
    return made.SerializeToString()


def test_a_snapshot_does_not_grow_with_what_workers_report_or_with_rounds() -> None:
    driver = Driver()
    for now, event, _ in [*story()][:7]:
        driver.take(event, now)
    sizes = []
    for n in range(1, 101):
        for worker_id in (1, 2):
            driver.hear(heartbeat(worker_id, n), 6.0 + n)
        history = state_codec().save(core=driver.core, history=driver.history)["history"]["EventHistory"]
        sizes.append(len(json.dumps([history["pace"], history["tracker"]])))
    assert sizes[-1] < sizes[19] + 100
    current = driver.core.round
    assert current is not None
    rounds = driver.history._timeline.rounds
    large = replace(current.plan, seats=current.plan.seats * (SNAPSHOT_MEMBERS // 4))
    for _ in range(5):
        rounds.assigned(large, 0, "", 200.0)
    assert [len(each.members) for each in rounds.for_snapshot] == [SNAPSHOT_MEMBERS // 2] * 2


def test_stragglers_stay_what_they_were_until_enough_is_known_again() -> None:
    first = Driver()
    told = [*story()]
    for now, event, _ in told[:7]:
        first.take(event, now)
    for n in range(1, 61):
        for worker_id in (1, 2):
            first.hear(heartbeat(worker_id, n), 6.0 + n)
        first.history.check_pace()
    slow = [each.worker_id for each in first.history.pace.stragglers()]
    assert slow == [2]
    second = Driver()
    second.now = first.now
    second.state.restore(json.loads(first.state.to_bytes(None)))
    for n in range(61, 140):
        for worker_id in (1, 2):
            second.hear(heartbeat(worker_id, n), 6.0 + n)
        assert second.history.check_pace() == []
        assert [each.worker_id for each in second.history.pace.stragglers()] == slow


def test_a_message_that_was_not_safe_comes_again() -> None:
    link: Link[Any] = Link(acknowledge_at_once=False)
    order = link.send(agent_pb2.ConnectResponse())
    for seq in (1, 2):
        assert link.receive(agent_pb2.ConnectRequest(seq=seq))
    link.mark_durable(1)
    after: Link[Any] = Link(acknowledge_at_once=False)
    after.restore(state_codec().read(json.loads(json.dumps(state_codec().save(link=link.state))), "link"))
    assert [message.seq for message in after.again()] == [order.seq]
    assert not after.receive(agent_pb2.ConnectRequest(seq=1))
    assert after.receive(agent_pb2.ConnectRequest(seq=2))


def test_what_hosts_have_alike_of_a_round_is_written_once() -> None:
    first, second = Driver(), Driver()
    for now, event, _ in [*story()][:5]:
        first.take(event, now)
    state = json.loads(first.state.to_bytes(None))
    agents = state_codec().read(state, "agents")
    (shared,) = agents.rounds
    assert shared.receivers
    assert not any(m.assign_round.round.receivers for peer in agents.peers for m in peer.link.unacknowledged)
    second.now = first.now
    second.state.restore(state)
    for agent_id in (1, 2):
        before, after = ([*driver.registry._peers[agent_id]._link.again()] for driver in (first, second))
        assert after == before
        assert after[-1].assign_round.round == shared


def test_events_that_may_not_be_written_yet_are_kept() -> None:
    buffer = EventBuffer()
    for n in range(1, 31):
        buffer.add(status_pb2.Event(text=f"event {n}"), 100.0 + n)
    after = EventBuffer()
    state_codec().load(after, json.loads(json.dumps(state_codec().save(buffer=buffer))), "buffer")
    assert [event.seq for event in after.since(24, 100)] == [*range(25, 31)]
    assert [event.text for event in after.go_on_after(28, 128.0)] == ["event 29", "event 30"]
    assert after.last_seq == 32


def test_a_plan_is_written_without_what_follows_from_it() -> None:
    plan = RoundPlan(RoundId(1, 1), 1, NO_VERSION, (), StoreAddress("a", 1), ())
    state = state_codec().save(plan=plan)
    assert "workers" not in state["types"]["RoundPlan"]
    assert state_codec().read(state, "plan") == plan
