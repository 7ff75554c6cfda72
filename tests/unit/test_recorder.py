"""A run's records: where they are, how they are written, which ones are kept."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from edriver.driver.observe.event_buffer import UNWRITTEN_SECONDS
from edriver.driver.observe.records import recorder as recorder_module
from edriver.driver.observe.records.record_file import RecordFile
from edriver.driver.observe.records.recorder import EventLogWriter, Recorder, describe, progress_is_due, writers_of
from edriver.history.records import read
from edriver.system.record_folder import MIN_REMOVAL_AGE, default_root, make, remove_old
from edriver.text.event_lines import event_line, gap_line
from edriver.v1 import resources_pb2, status_pb2

MONTH = 30 * 24 * 3600


def events(*seqs: int) -> list[status_pb2.Event]:
    return [status_pb2.Event(seq=seq, text="x" * 100) for seq in seqs]


def seqs_in(path: Path) -> list[int]:
    return [int(json.loads(line)["seq"]) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        pytest.param({"XDG_STATE_HOME": "/s"}, "/s/edriver", id="xdg"),
        pytest.param({"XDG_STATE_HOME": "relative"}, "/home/u/.local/state/edriver", id="not-absolute"),
        pytest.param({}, "/home/u/.local/state/edriver", id="unset"),
    ],
)
def test_where_the_default_folder_is(environ: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert default_root(environ) == Path(root)


def test_a_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "new" / "edriver", "00000001")
    describe(folder, {"run_id": "00000001"})
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "run.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        make(tmp_path / "new" / "edriver", "00000001")


def lines_of(age: float) -> int:
    """How many lines about the progress a run of this age has, if it is asked once a second."""
    last, count = -1.0, 0
    for now in range(int(age)):
        if progress_is_due(float(now), last):
            last, count = float(now), count + 1
    return count


def test_lines_about_the_progress_become_rare() -> None:
    assert progress_is_due(0.0, -1.0)
    assert not progress_is_due(10.5, 10.0)
    assert progress_is_due(11.0, 10.0)
    assert not progress_is_due(1008.0, 1000.0)
    assert progress_is_due(1010.2, 1000.0)
    assert not progress_is_due(MONTH + 59.0, MONTH)
    assert progress_is_due(MONTH + 60.0, MONTH)
    assert lines_of(60) == 60
    assert lines_of(MONTH) < 45_000


def a_run(root: Path, run_id: str, written: float, reported: str | None = None) -> Path:
    folder = make(root, run_id)
    describe(folder, {"run_id": reported or run_id})
    (folder / "events.jsonl").touch()
    os.utime(folder / "events.jsonl", (written, written))
    return folder


def test_the_latest_runs_are_kept(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, f"{number:08x}", written=1000.0 + number) for number in range(6)]
    now = 1003.5 + MIN_REMOVAL_AGE
    assert remove_old(tmp_path, now, kept=1) == runs[3::-1]  # the one that is kept is the latest; 4 is too young
    assert sorted(tmp_path.iterdir()) == runs[4:]


def test_only_what_is_evidently_a_runs_is_removed(tmp_path: Path) -> None:
    others = tmp_path / "deadbeef.d"
    others.mkdir()
    (others / "run.json").write_text("{}")
    kept = [
        others,
        a_run(tmp_path, "00000001", 1.0, reported="another"),
        a_run(tmp_path, "00000002", 1.0),
        a_run(tmp_path, "00000003", 1.0),
        tmp_path / "00000004",
        tmp_path / "0000000a",
    ]
    (kept[2] / "notes.txt").touch()
    (kept[3] / "run.json").write_text("no json")
    elsewhere = a_run(tmp_path / "elsewhere", "00000004", 1.0)
    kept[4].symlink_to(elsewhere)
    kept[5].touch()
    kept += [a_run(tmp_path, f"0000000{digit}", 1.0) for digit in "bc"]
    (kept[6] / "output").mkdir()
    (kept[6] / "output" / "notes.txt").touch()
    outputs = elsewhere / "output"
    outputs.mkdir()
    (outputs / "worker.1.log").touch()
    (kept[7] / "output").symlink_to(outputs)
    gone = a_run(tmp_path, "00000005", 1.0)
    (gone / "output").mkdir()
    for name in ("worker.1.log", "worker.1.log.1", "worker.12.log"):
        (gone / "output" / name).touch()
    assert remove_old(tmp_path, 2 * MIN_REMOVAL_AGE, kept=0) == [gone]
    assert all(os.path.lexists(path) for path in kept)
    assert (elsewhere / "events.jsonl").exists()
    assert (outputs / "worker.1.log").exists()


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    path.mkdir()
    file = RecordFile(path, "event log")
    for _ in range(3):
        file.append(["x"])
    file.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"the event log {path} cannot be written: Is a directory; events are kept in memory and written later",
        f"the event log {path} lacks its last 3 entries",
    ]


def test_what_cannot_be_written_is_written_later_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    path.mkdir()
    file = RecordFile(path, "event log")
    file.append(["one\n", "two\n"])
    file.append(["three\n"])
    path.rmdir()
    assert file.flush()
    file.append(["four\n"])
    assert path.read_text() == "one\ntwo\nthree\nfour\n"


def test_what_exceeds_the_buffer_is_dropped_and_the_file_records_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    path.mkdir()
    file = RecordFile(path, "event log", gap=lambda missing: f"({missing} are missing)\n", kept=10)
    for text in ("one\n", "two\n", "three\n", "4\n"):
        file.append([text])
    path.rmdir()
    file.append(["5\n"])
    file.append(["six\n"])
    assert path.read_text() == "one\ntwo\n(3 are missing)\nsix\n"
    assert caplog.messages[1:] == [f"the event log {path} lacks 3 entries: they could not be written"]


def test_a_log_that_lacks_lines_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(event_line(status_pb2.Event(seq=1)) + gap_line(7) + event_line(status_pb2.Event(seq=9)))
    assert [event.seq for event in read(path) if isinstance(event, status_pb2.Event)] == [1, 9]


def test_a_process_without_descriptors_goes_on_writing(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "log", "event log")
    file.append(["one\n"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            (tmp_path / "another").touch()
        file.append(["two\n"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert file.path.read_text() == "one\ntwo\n"


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "log", "event log")
    file.append(["one\n"])
    file.path.rename(tmp_path / "log.1")
    file.append(["two\n"])
    assert ((tmp_path / "log.1").read_text(), file.path.read_text()) == ("one\n", "two\n")
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    file = RecordFile(path, "record")
    file.append(["one\n"])
    really, room = os.write, [5]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        count = really(descriptor, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    file.append(["two, which is too long\n"])
    assert path.read_text() == "one\n"
    room[0] = 100
    file.append(["three\n"])
    assert path.read_text() == "one\ntwo, which is too long\nthree\n"


def test_a_file_does_not_grow_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = RecordFile(tmp_path / "trace.json", "record", largest=10)
    for text in ("12345", "67890", "x", "y"):
        file.append([text])
    assert file.path.read_text() == "1234567890"
    assert [record.getMessage() for record in caplog.records] == [
        f"the record {file.path} has 0 MiB: nothing more will be written to it"
    ]


def test_events_and_progress_are_written_in_order(tmp_path: Path) -> None:
    now = [100.0]
    recorder = Recorder(writers_of(tmp_path, "r", began=100.0), began=100.0, clock=lambda: now[0], delay=0.0)
    recorder.start()
    recorder.events(events(1, 2))
    recorder.progress(status_pb2.Progress(steps=1))
    recorder.progress(status_pb2.Progress(steps=2))
    now[0] = 101.0
    recorder.progress(status_pb2.Progress(steps=3))
    recorder.events(events(3))
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    found = [line.get("seq") or (line["time"], line["progress"]["steps"]) for line in lines]
    assert found == ["1", "2", ("1970-01-01T00:01:40Z", "1"), ("1970-01-01T00:01:41Z", "3"), "3"]


class Arrivals(threading.Condition):
    """Each wait for a pause ends at once, after a further event for as long as there are some."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.recorder: Recorder | None = None

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> Any:
        if timeout is None:
            return super().wait_for(predicate)
        assert self.recorder is not None
        if self.left and not predicate():
            self.left -= 1
            self.recorder.events(events(100 - self.left))
        return predicate()


@pytest.mark.parametrize(
    ("longest", "limit", "at_once"),
    [
        pytest.param(60.0, 1 << 20, 11, id="until-there-is-a-pause"),
        pytest.param(0.0, 1 << 20, 1, id="for-as-long-as-there-is-time"),
        pytest.param(60.0, 1000, 5, id="for-as-long-as-there-is-room"),  # an event has some 110 bytes
    ],
)
def test_events_are_written_once_no_more_come(
    longest: float, limit: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_WRITE_DELAY", longest)
    writer = StuckBook()
    writer.goes_on.set()
    recorder = Recorder([writer], began=0.0, limit=limit)
    arrivals = recorder._changed = Arrivals(left=10)
    arrivals.recorder = recorder
    recorder.events(events(1))
    recorder.start()
    assert writer.reached.wait(30)
    recorder.close()
    assert len(writer.reported) == at_once


def test_a_snapshot_keeps_what_may_not_be_written_yet() -> None:
    batch = recorder_module.MAX_WRITE_DELAY + recorder_module.WRITE_DELAY
    assert 2 * batch <= UNWRITTEN_SECONDS  # one that waits, and one that is being written


def test_an_event_log_has_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorder = Recorder([EventLogWriter(RecordFile(path, "event log"), progress=False)], began=0.0, delay=0.0)
    recorder.start()
    recorder.progress(status_pb2.Progress(steps=1))
    recorder.events(events(1))
    recorder.close()
    assert seqs_in(path) == [1]


class StuckBook:
    """On a file server that hangs."""

    fault = ""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.goes_on = threading.Event()
        self.reported: list[int] = []

    def events(self, reported: Iterable[status_pb2.Event]) -> None:
        self.reached.set()
        self.goes_on.wait(30)
        self.reported += [event.seq for event in reported]

    def progress(self, at: float, progress: status_pb2.Progress) -> None:
        pass

    def usage(self, sample: resources_pb2.UsageSample) -> None:
        pass

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        pass


def test_a_disk_that_hangs_is_not_felt(caplog: pytest.LogCaptureFixture) -> None:
    writer = StuckBook()
    recorder = Recorder([writer], began=0.0, delay=0.0, limit=1000)
    recorder.start()
    recorder.events(events(1))
    assert writer.reached.wait(30)
    for seq in range(2, 100):
        recorder.events(events(seq))
    recorder.close(timeout=0.0)
    assert [record.getMessage() for record in caplog.records] == [
        "events are left out of the run's records: writing takes too long",
        "the run's last events are not recorded: writing takes too long",
    ]
    writer.goes_on.set()
    recorder.close()
    assert writer.reported == list(range(1, 10))


class UnwillingBook(StuckBook):
    """Cannot be written at first."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on.set()
        self.tries = 0
        self.settled = threading.Event()

    def flush(self) -> bool:
        self.tries += 1
        if self.tries == 3:
            self.settled.set()
        return self.settled.is_set()


def test_what_could_not_be_written_is_tried_again_though_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "RETRY_INTERVAL", 0.01)
    writer = UnwillingBook()
    recorder = Recorder([writer], began=0.0, delay=0.0)
    recorder.start()
    recorder.events(events(1))
    assert writer.settled.wait(30)
    recorder.close()
