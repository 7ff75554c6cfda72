"""Runs that have left records, in a line each."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from edriver.commands.runs import runs, table
from edriver.dashboard import known_runs
from edriver.history.run_list import TAIL_BYTES, RunSummary, recorded_runs
from edriver.text.event_lines import event_line
from edriver.text.message_writer import plain
from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, timestamp

BEGAN = 1_700_000_000.0


@pytest.fixture(autouse=True)
def no_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_runs, "living_runs", dict)  # on this machine there may be some, of other tests


def made(root: Path, run_id: str, began: float = BEGAN, *entries: object, **about: object) -> Path:
    """A run's records: events, and samples of progress at so many seconds after its beginning."""
    folder = root / run_id
    folder.mkdir()
    start = timestamp(began).ToJsonString()
    (folder / "run.json").write_text(json.dumps({"run_id": run_id, "start_time": start, "command": ["a b"], **about}))
    with (folder / "events.jsonl").open("w") as file:
        for seq, entry in enumerate(entries, start=1):
            if isinstance(entry, status_pb2.ProgressSample):
                file.write(json.dumps(plain(entry)) + "\n")
            else:
                assert isinstance(entry, status_pb2.Event)
                entry.seq = seq
                file.write(event_line(entry))
    return folder


def sample(after: float, steps: int, goodput: float = 0.5) -> status_pb2.ProgressSample:
    spent = status_pb2.TimeSpent(goodput=goodput, training=duration(1.0))
    progress = status_pb2.Progress(steps=steps, time_spent=spent)
    return status_pb2.ProgressSample(time=timestamp(BEGAN + after), progress=progress)


def ended(after: float, end: status_pb2.RunEnd.ValueType, steps: int | None = None, size: int = 0) -> status_pb2.Event:
    message = status_pb2.RunEnded(end=end, size=size)
    if steps is not None:
        message.progress.steps = steps
        message.time_spent.goodput = 0.25
    return status_pb2.Event(time=timestamp(BEGAN + after), run_ended=message)


def test_each_way_to_end_is_told_the_latest_first(tmp_path: Path) -> None:
    made(tmp_path, "00000001", BEGAN, sample(5.0, 7), ended(10.0, status_pb2.RUN_END_DONE, 90, 4))
    made(tmp_path, "00000002", BEGAN + 1.0, ended(2.0, status_pb2.RUN_END_FAILED))
    made(tmp_path, "00000003", BEGAN + 2.0, sample(30.0, 70, 0.75), name="n", tags={"lr": "1"}, git={"commit": "c"})
    made(tmp_path, "00000004", BEGAN + 3.0, sample(30.0, 70))
    assert recorded_runs(tmp_path, frozenset({"00000004"})) == [
        RunSummary("00000004", "running", BEGAN + 3.0, 27.0, ("a b",), goodput=0.5, steps=70),
        RunSummary(
            "00000003",
            "lost",
            BEGAN + 2.0,
            28.0,
            ("a b",),
            name="n",
            tags={"lr": "1"},
            commit="c",
            goodput=0.75,
            steps=70,
        ),
        RunSummary("00000002", "failed", BEGAN + 1.0, 1.0, ("a b",)),
        RunSummary("00000001", "done", BEGAN, 10.0, ("a b",), size=4, goodput=0.25, steps=90),
    ]


def test_steps_that_are_not_known_are_not_said_to_be_none(tmp_path: Path) -> None:
    spent = status_pb2.TimeSpent(unknown=duration(1.0))
    over = status_pb2.RunEnded(end=status_pb2.RUN_END_DONE, time_spent=spent, progress=status_pb2.Progress())
    progress = status_pb2.ProgressSample(time=timestamp(BEGAN + 5.0), progress=status_pb2.Progress(time_spent=spent))
    made(tmp_path, "00000001", BEGAN, progress)
    made(tmp_path, "00000002", BEGAN, status_pb2.Event(time=timestamp(BEGAN + 9.0), run_ended=over))
    assert [(run.steps, run.goodput) for run in recorded_runs(tmp_path)] == [(None, None)] * 2


def test_only_the_end_of_a_long_record_is_read(tmp_path: Path) -> None:
    folder = made(tmp_path, "00000001", BEGAN, ended(10.0, status_pb2.RUN_END_DONE, 90, 4))
    whole = (folder / "events.jsonl").read_text()
    filler = event_line(status_pb2.Event(seq=1, time=timestamp(BEGAN), text="x" * 1000))
    (folder / "events.jsonl").write_text(filler * (3 * TAIL_BYTES // len(filler)) + whole)
    assert [(each.state, each.steps) for each in recorded_runs(tmp_path)] == [("done", 90)]


def test_a_torn_last_line_hides_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path, "00000001", BEGAN, sample(5.0, 7))
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"seq": "2", "time": "2023-11-')
    assert [(each.state, each.steps) for each in recorded_runs(tmp_path)] == [("lost", 7)]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"start_time": "no"}', "\x00", '{"start_time": 1}'])
def test_records_that_are_nonsense_are_passed_over(tmp_path: Path, text: str) -> None:
    made(tmp_path, "00000001", BEGAN, sample(5.0, 7))
    made(tmp_path, "00000002", BEGAN, sample(5.0, 7))
    (tmp_path / "00000002" / "run.json").write_text(text)
    (tmp_path / "mine").mkdir()
    (tmp_path / "00000003").write_text("a file")
    assert [each.run_id for each in recorded_runs(tmp_path)] == ["00000001"]


def test_the_table_is_as_wide_as_the_terminal() -> None:
    run = RunSummary("abcdef01", "done", BEGAN, 62.0, ("python", "a b.py"), size=4, goodput=0.987, steps=12345)
    heads, line = table([run], None)
    assert heads.split() == ["RUN", "NAME", "STATE", "STARTED", "TOOK", "WORKERS", "STEPS", "GOODPUT", "COMMAND"]
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(BEGAN))
    cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
    assert cells == ["abcdef01", "-", "done", started, "1 min 2 s", "4", "12,345", "98.7 %", "python 'a b.py'"]
    assert [line.index(cell) for cell in ("done", "12,345")] == [heads.index(head) for head in ("STATE", "STEPS")]
    assert all(len(line) <= 40 for line in table([run], 40))


def test_they_are_found_by_their_tags(tmp_path: Path) -> None:
    made(tmp_path, "00000001", BEGAN, sample(5.0, 7), tags={"lr": "1", "who": "me"})
    made(tmp_path, "00000002", BEGAN, sample(5.0, 7), tags={"lr": "2"})
    here = ["--records", str(tmp_path)]
    found = json.loads(runs([*here, "--json", "--tag", "lr=1", "--tag", "who=me"]))
    assert [each["run_id"] for each in found] == ["00000001"]
    assert runs([*here, "--tag", "lr=3"]) == "there are no runs with such tags"


def test_of_many_the_latest_are_listed_unless_all_are_asked_for(tmp_path: Path) -> None:
    for number in range(25):
        made(tmp_path, f"{number:08x}", BEGAN + number, sample(30.0, 7))
    here = ["--records", str(tmp_path)]
    lines = runs(here).splitlines()
    assert (len(lines), lines[1][:8], lines[-1]) == (22, f"{24:08x}", "and 5 more: --all lists them")
    assert len(runs([*here, "--all"]).splitlines()) == 26
