"""A run's records, read back."""

from __future__ import annotations

import json
import math
import random
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from edriver.history.records import RecordError, UnreadableLine, read, records_of
from edriver.text.event_lines import event_line
from edriver.text.message_reader import message_of
from edriver.text.message_writer import plain
from edriver.v1 import resources_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, timestamp
from tests.fuzz.messages import Fuzzer

LINES = (
    '{"seq": 1, "time": "1970-01-01T00:00:05Z", "text": "a", "remark": {}}\n'
    '{"time": "1970-01-01T00:00:06Z", "progress": {"steps": 3}}\n'
)


def as_text(message: Message) -> str:
    return json.dumps(plain(message), sort_keys=True)  # NaN is not equal to itself


def folder(at: Path, lines: str = LINES, run: str = '{"run_id": "abcd", "np": 2}') -> Path:
    at.mkdir(parents=True)
    (at / "events.jsonl").write_text(lines)
    if run:
        (at / "run.json").write_text(run)
    return at


def test_what_the_event_log_writes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fuzzer = Fuzzer(random.Random(1))
    written: list[status_pb2.Event] = []
    lines = []
    while len(written) < 100:
        message = fuzzer.message(status_pb2.Event)
        assert isinstance(message, status_pb2.Event)
        message.seq = len(written) + 1
        if message.HasField("round"):
            message.round.ClearField("first_step_time")  # such rounds are read without the members that are known
        with suppress(ValueError):  # a date or a span beyond those that protobuf defines
            lines.append(event_line(message))
            written.append(message)
    path.write_text("".join(lines))
    assert [as_text(each) for each in read(path) if isinstance(each, Message)] == [as_text(each) for each in written]


@pytest.mark.parametrize("kind", [status_pb2.Event, status_pb2.ProgressSample, resources_pb2.UsageSample])
def test_a_message_is_what_protobuf_itself_reads(kind: type[Message]) -> None:
    fuzzer, compared = Fuzzer(random.Random(2)), 0
    while compared < 100:
        message = fuzzer.message(kind)
        with suppress(ValueError):
            parsed = json.loads(json.dumps(plain(message)))
            back = json_format.ParseDict(parsed, kind())
            assert as_text(message_of(kind, parsed)) == as_text(back)
            compared += 1


def test_ids_and_enums_and_what_is_no_number() -> None:
    reported = status_pb2.WorkerStatus(
        worker_id=3,
        state=status_pb2.WORKER_STATE_TRAINING,
        version=rounds_pb2.Version(round_id=rounds_pb2.RoundId(incarnation=1, n=2), boundaries=30),
    )
    assert message_of(status_pb2.WorkerStatus, plain(reported)) == reported
    progress = status_pb2.Progress(steps=1, reported={"loss": math.nan, "a": math.inf, "b": -math.inf})
    back = message_of(status_pb2.Progress, json.loads(json.dumps(plain(progress))))
    assert math.isnan(back.reported["loss"])
    assert (back.reported["a"], back.reported["b"]) == (math.inf, -math.inf)


def test_what_is_reported_is_read_back(tmp_path: Path) -> None:
    progress = status_pb2.Progress(
        steps=1, reported={"loss": math.nan, "a": math.inf, "b": -math.inf, "c": 0.1, "d": 2}
    )
    line = json.dumps({"time": "1970-01-01T00:00:06Z", "progress": plain(progress)})
    (sample,) = read(folder(tmp_path / "r", f"{line}\n") / "events.jsonl")
    assert isinstance(sample, status_pb2.ProgressSample)
    assert as_text(sample.progress) == as_text(progress)


def test_the_members_of_a_round_are_read_once(tmp_path: Path) -> None:
    """Where the line of its assignment is lost, they are read from that of its first step."""

    def a_round(seq: int, n: int, **more: str) -> str:
        about = {"round_id": {"incarnation": "1", "n": str(n)}, "members": [{"worker_id": "7", "host": "a", "slot": 3}]}
        return json.dumps({"seq": str(seq), "time": "1970-01-01T00:00:05Z", "round": about | more}) + "\n"

    under_way = {"first_step_time": "1970-01-01T00:00:06Z"}
    lines = a_round(1, 1) + a_round(2, 1, **under_way) + a_round(3, 2, **under_way) + a_round(4, 1)
    rounds = [event.round for event in read(folder(tmp_path / "r", lines) / "events.jsonl")]  # type: ignore[union-attr]
    assert [[(each.worker_id, each.host, each.slot) for each in of.members] for of in rounds] == [
        [(7, "a", 3)],
        [],
        [(7, "a", 3)],
        [(7, "a", 3)],
    ]


def test_a_host_with_a_bracket_in_its_name_hides_nothing(tmp_path: Path) -> None:
    member = status_pb2.Member(worker_id=7, host='a], "members": [{ [b', slot=3)
    assigned = status_pb2.Round(round_id=rounds_pb2.RoundId(incarnation=1, n=1), members=[member, member])
    under_way = status_pb2.Round(first_step_time=timestamp(6.0), steps_lost=5)
    under_way.MergeFrom(assigned)
    lines = [
        event_line(status_pb2.Event(seq=seq, time=timestamp(5.0), round=each))
        for seq, each in enumerate((assigned, under_way), start=1)
    ]
    found = list(read(folder(tmp_path / "r", "".join(lines)) / "events.jsonl"))
    assert [each.round for each in found if isinstance(each, status_pb2.Event)] == [assigned, under_way]


def test_events_and_progress_in_their_order(tmp_path: Path) -> None:
    event, sample = read(folder(tmp_path / "r") / "events.jsonl")
    assert isinstance(event, status_pb2.Event)
    assert (event.seq, event.text, event.WhichOneof("kind")) == (1, "a", "remark")
    assert isinstance(sample, status_pb2.ProgressSample)
    assert (epoch_seconds(sample.time), sample.progress.steps) == (6.0, 3)


@pytest.mark.parametrize("torn", ['{"seq": 2, "ti', '{"seq', "{", '{"seq": 2, "time": "x"}'])
def test_a_torn_last_line_is_not_read(tmp_path: Path, torn: str) -> None:
    assert len(list(read(folder(tmp_path / "r", LINES + torn) / "events.jsonl"))) == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        '{"seq": 2, "ti',
        "[]",
        "3",
        '{"time": "1970-01-01T00:00:05Z"}',
        '{"seq": 2, "time": 5.0, "text": "a"}',
        '{"seq": 2, "time": "x"}',
        '{"seq": 2, "round": {"assign_time": "x"}}',
        '{"seq": 2, "host": 3}',
        '{"time": "1970-01-01T00:00:05Z", "progress": {"steps": []}}',
        '{"time": "1970-01-01T00:00:05Z", "progress": {"reported": [3]}}',
        '{"time": "1970-01-01T00:00:05Z", "progress": {"reported": {"loss": "low"}}}',
        f'{{"time": "1970-01-01T00:00:05Z", "progress": {{"reported": {{"loss": 1{"0" * 400}}}}}}}',
        '{"seq": 2, "round": {"members": [{"slot": Infinity}]}}',
        '{"seq": -1}',
        "\\x00",
        "[" * 100_000,
    ],
)
def test_an_invalid_line_is_passed_over_and_named(tmp_path: Path, nonsense: str) -> None:
    path = folder(tmp_path / "r", LINES + nonsense + "\n" + LINES) / "events.jsonl"
    before, sample, unreadable, after, _ = read(path)
    assert isinstance(unreadable, UnreadableLine)
    assert unreadable.number == 3
    assert unreadable.why
    assert isinstance(sample, status_pb2.ProgressSample)
    assert before == after


def test_fields_of_a_later_release_are_passed_over(tmp_path: Path) -> None:
    line = '{"seq": 7, "remark": {"mood": "good"}, "weather": [1]}\n'
    (event,) = read(folder(tmp_path / "r", line) / "events.jsonl")
    assert isinstance(event, status_pb2.Event)
    assert event.seq == 7


def test_where_records_are(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    made = folder(tmp_path / "edriver" / "abcd")
    for named in ("abcd", str(made)):
        found = records_of(named, environ)
        assert found.events == made / "events.jsonl"
        assert found.run == {"run_id": "abcd", "np": 2}
    assert records_of(str(made / "events.jsonl"), environ).run == {}


def named_run(root: Path, run_id: str, name: str, day: int) -> None:
    run = {"run_id": run_id, "name": name, "start_time": f"2026-01-{day:02}T00:00:00Z"}
    folder(root / run_id, run=json.dumps(run))


def test_a_name_stands_for_the_latest_run_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "edriver"
    for run_id, name, day in (("0000000a", "trial", 2), ("0000000b", "trial", 3), ("0000000c", "trial", 1)):
        named_run(root, run_id, name, day)
    named_run(root, "0000000d", "0000000a", 4)
    (root / "0000000e").mkdir()
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert records_of("trial", environ).run["run_id"] == "0000000b"
    assert records_of("0000000a", environ).run["run_id"] == "0000000a"  # an ID goes before a name
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial").mkdir()  # a folder with other things in it
    assert records_of("trial", environ).run["run_id"] == "0000000b"
    with pytest.raises(RecordError, match=r"'trail': did you mean trial\?$"):
        records_of("trail", environ)


def test_a_folder_of_records_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named_run(tmp_path / "edriver", "0000000a", "trial", 1)
    folder(tmp_path / "trial", run='{"run_id": "0000000b"}')
    monkeypatch.chdir(tmp_path)
    assert records_of("trial", {"XDG_STATE_HOME": str(tmp_path)}).run["run_id"] == "0000000b"


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        pytest.param("none", "there are no records of a run 'none'", id="no-run"),
        pytest.param("../edriver/abcd", "there are no records", id="a-way-out"),
        pytest.param("empty", "is not the folder of a run", id="no-events"),
        pytest.param("bad", r"run\.json is not JSON", id="bad-json"),
        pytest.param("list", r"run\.json is not an object", id="no-object"),
    ],
)
def test_records_that_are_not_there(tmp_path: Path, named: str, sentence: str) -> None:
    place = tmp_path / "edriver"
    folder(place / "abcd")
    (place / "empty").mkdir()
    folder(place / "bad", run="{")
    folder(place / "list", run="[]")
    with pytest.raises(RecordError, match=sentence):
        records_of(named, {"XDG_STATE_HOME": str(tmp_path)})
