"""The workers' output in a run's records: written, bounded, and read back."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edriver.driver.observe.records.output_files import MIN_FREE_BYTES, OutputFiles, Writer
from edriver.driver.observe.records.output_recorder import OutputRecorder
from edriver.history.worker_output import BLOCK_BYTES, recorded_output
from edriver.text.output_lines import Header, file_name, header_of, line_of, missing_line, time_bytes, written_line
from edriver.v1 import agent_pb2
from edriver.wire.conversion import epoch_seconds
from tests.waiting import until

ONE, TWO = Writer(1, 0, "a"), Writer(2, 1, "b")


def line(text: str | bytes, worker: int = 1, rank: int | None = 0, **more: bool) -> agent_pb2.OutputLine:
    data = text if isinstance(text, bytes) else text.encode()
    return agent_pb2.OutputLine(worker_id=worker, slot=worker - 1, rank=rank, text=data, **more)


def batch(*lines: agent_pb2.OutputLine) -> agent_pb2.ForwardOutputRequest:
    return agent_pb2.ForwardOutputRequest(lines=lines)


def texts(folder: Path, **wanted: object) -> list[str]:
    return [each.text.decode() for each in recorded_output(folder, **wanted)]  # type: ignore[arg-type]


class Disk:
    """Takes what is written, unless it is full."""

    def __init__(self) -> None:
        self.full = False
        self.written: dict[Writer, list[bytes]] = {}
        self.refused = threading.Event()

    def append(self, writer: Writer, lines: bytes) -> None:
        if self.full:
            self.refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written.setdefault(writer, []).extend(lines.splitlines())

    def texts(self, writer: Writer) -> list[str]:
        found = [line_of(each) for each in self.written.get(writer, [])]
        return [each.text.decode() for each in found if each is not None]


# ---- the form --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        pytest.param(line("loss 0.3", rank=12), (12, b"stdout", b"loss 0.3"), id="rank"),
        pytest.param(line(b" \xff \r ", rank=None, stderr=True), (None, b"stderr", b" \xff \r "), id="any-bytes"),
        pytest.param(line(""), (0, b"stdout", b""), id="empty"),
        pytest.param(line("one\n# edriver output"), (0, b"stdout", b"one # edriver output"), id="no-line-end-inside"),
    ],
)
def test_a_line_is_read_as_it_was_written(given: agent_pb2.OutputLine, found: tuple[int | None, bytes, bytes]) -> None:
    read = line_of(written_line(time_bytes(1700000000.25), given))
    assert read is not None
    assert (read.time, read.seconds) == (b"2023-11-14T22:13:20.250000Z", 1700000000.25)
    assert read[1:] == found


def test_headers_and_other_lines_are_told_apart() -> None:
    header = Header(7, 3, 2, "node-3")
    assert header_of(header.line()) == header
    assert line_of(header.line()) is None
    assert header_of(missing_line(time_bytes(0.0), 1)) is None
    assert line_of(b"2023-11-14T22:13:20.2") is None


# ---- files -----------------------------------------------------------------------------------------------------------


def lines_of(numbers: range, size: int = 100) -> Iterator[bytes]:
    for number in numbers:
        yield written_line(time_bytes(float(number)), line(f"line {number} ".ljust(size, "x")))


def first_words(folder: Path, **wanted: object) -> list[str]:
    return [text.partition(" x")[0] for text in texts(folder, **wanted)]


def test_files_are_private_and_a_worker_keeps_its_latest_output(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = OutputFiles(tmp_path / "output", worker_limit=4000)
        for each in lines_of(range(100)):
            files.append(ONE, each)
    finally:
        os.umask(before)
    kept = sorted((tmp_path / "output").iterdir())
    assert [path.name for path in kept] == ["worker.1.log", "worker.1.log.1"]
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "output", *kept)] == [0o700, 0o600, 0o600]
    assert 2000 < sum(path.stat().st_size for path in kept) <= 4000 + 200
    found = first_words(tmp_path / "output")
    assert found[0] == "edriver: what worker 1 wrote before this is no longer kept"
    assert found[1:] == [f"line {number}" for number in range(101 - len(found), 100)]
    assert first_words(tmp_path / "output", lines=3) == ["line 97", "line 98", "line 99"]
    assert first_words(tmp_path / "output", lines=1000) == found


def test_all_workers_together_are_bounded_and_the_one_silent_longest_loses_first(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, worker_limit=100_000, run_limit=3000)
    for each in lines_of(range(10)):
        files.append(ONE, each)
    for each in lines_of(range(10, 25)):
        files.append(TWO, each)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000
    assert first_words(tmp_path, worker_id=1) == []
    assert first_words(tmp_path, worker_id=2) == [f"line {number}" for number in range(10, 25)]
    files.append(ONE, next(lines_of(range(30, 31))))
    assert first_words(tmp_path, worker_id=1) == [
        "edriver: what worker 1 wrote before this is no longer kept",
        "line 30",
    ]


def test_another_driver_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    first = OutputFiles(tmp_path, worker_limit=3000)
    for each in lines_of(range(5)):
        first.append(ONE, each)
    with (tmp_path / file_name(1)).open("ab") as file:
        file.write(b"2023-11-14T22:13")  # half a line
    second = OutputFiles(tmp_path, worker_limit=3000)
    for each in lines_of(range(5, 14)):
        second.append(ONE, each)
    assert first_words(tmp_path) == [f"line {number}" for number in range(14)]
    assert header_of((tmp_path / file_name(1)).read_bytes().splitlines()[0]) == Header(1, 0, 2, "a")


def test_a_disk_keeps_room_for_the_journal(tmp_path: Path) -> None:
    free = MIN_FREE_BYTES
    files = OutputFiles(tmp_path, free=lambda _: free)
    with pytest.raises(OSError, match="less than 256 MiB are free") as caught:
        files.append(ONE, next(lines_of(range(1))))
    assert caught.value.errno == errno.ENOSPC
    free = 2 * MIN_FREE_BYTES
    files.append(ONE, next(lines_of(range(1))))
    assert first_words(tmp_path) == ["line 0"]


def test_half_a_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OutputFiles(tmp_path)
    files.append(ONE, next(lines_of(range(1))))
    real = os.write
    left = [20]

    def full(descriptor: int, data: bytes) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: left.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            files.append(ONE, next(lines_of(range(1, 2))))
    files.append(ONE, next(lines_of(range(2, 3))))
    assert first_words(tmp_path) == ["line 0", "line 2"]


# ---- the thread ------------------------------------------------------------------------------------------------------


def test_what_is_put_is_written_and_a_bar_now_and_then() -> None:
    disk, now = Disk(), [0.0]
    recorder = OutputRecorder(disk, lambda: now[0], delay=0.0)
    recorder.start()
    recorder.put("a", batch(line("first"), line("0 %", stderr=True, unfinished=True)))
    for second in range(1, 16):
        now[0] = float(second)
        recorder.put("a", batch(line(f"{second} %", stderr=True, unfinished=True, replaces=True)))
    recorder.put("b", batch(line("other", worker=2, rank=None)))
    recorder.close()
    assert disk.texts(ONE) == ["first", "0 %", "10 %", "15 %"]
    assert disk.texts(TWO) == ["other"]
    assert recorder.fault == ""


def test_only_what_waits_counts() -> None:
    disk = Disk()
    recorder = OutputRecorder(disk, lambda: 0.0, delay=0.0, limit=1000)
    recorder.start()
    for number in range(30):
        recorder.put("a", batch(line("bar", stderr=True, unfinished=True), line(f"{number}")))
        until(lambda number=number: f"{number}" in disk.texts(ONE), every=0.001)  # type: ignore[misc]
    recorder.close()
    assert disk.texts(ONE) == ["bar", *map(str, range(30))]


def test_a_full_disk_costs_lines_within_bounds_and_the_file_says_how_many(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    recorder = OutputRecorder(disk, lambda: 0.0, delay=0.0, limit=2000)
    recorder.start()
    disk.full = True
    recorder.put("a", batch(line("0" * 100)))
    assert disk.refused.wait(10)
    for number in range(1, 100):
        recorder.put("a", batch(line(f"{number} " * 40)))
    recorder.put("b", batch(line("small", worker=2)))
    assert recorder._size <= 2000
    until(lambda: recorder.fault == "the workers' output cannot be recorded: No space left on device")
    disk.full = False
    until(lambda: bool(disk.texts(TWO)))
    recorder.put("a", batch(line("later")))
    recorder.close()
    found = disk.texts(ONE)
    kept = len(found) - 2
    assert found[-2:] == [f"{100 - kept} lines are missing here: they could not be written", "later"]
    assert disk.texts(TWO) == ["1 line is missing here: they could not be written"]
    assert next(record.message for record in caplog.records if "recorded" in record.message).endswith(
        "it is kept in memory, up to a limit, and written later"
    )


def test_a_disk_that_hangs_blocks_nobody() -> None:
    class Hanging:
        def __init__(self) -> None:
            self.free = threading.Event()
            self.entered = threading.Event()

        def append(self, writer: Writer, lines: bytes) -> None:
            self.entered.set()
            assert self.free.wait(60)

    disk = Hanging()
    recorder = OutputRecorder(disk, lambda: 0.0, delay=0.0, limit=10_000)
    recorder.start()
    recorder.put("a", batch(line("x")))
    assert disk.entered.wait(10)
    for _ in range(1000):
        recorder.put("a", batch(line("x" * 100)))  # returns at once
    assert recorder._size <= 10_000
    recorder.close(timeout=0.01)
    disk.free.set()


# ---- reading ---------------------------------------------------------------------------------------------------------


def recorded(folder: Path) -> None:
    now = [1000.0]
    recorder = OutputRecorder(OutputFiles(folder), lambda: now[0], delay=0.0)
    recorder.start()
    for host, each in (
        ("a", line("boots", rank=None)),
        ("b", line("boots too", worker=2, rank=None)),
        ("a", line("trains", rank=1)),
        ("b", line("trains", worker=2, rank=0, stderr=True)),
        ("a", line("dies", rank=1)),
        ("b", line("is rank 1 now", worker=2, rank=1)),
    ):
        recorder.put(host, batch(each))
        now[0] += 1.0
    recorder.close()


def test_lines_come_in_their_order_and_are_selected_as_those_of_a_run_in_progress(tmp_path: Path) -> None:
    recorded(tmp_path)
    lines = list(recorded_output(tmp_path))
    assert [each.text.decode() for each in lines] == ["boots", "boots too", "trains", "trains", "dies", "is rank 1 now"]
    assert [each.seq for each in lines] == [1, 2, 3, 4, 5, 6]
    assert [epoch_seconds(each.time) for each in lines] == [1000.0 + number for number in range(6)]
    assert [(each.worker_id, each.host, each.slot) for each in lines[:2]] == [(1, "a", 0), (2, "b", 1)]
    assert [each.stderr for each in lines] == [False, False, False, True, False, False]
    assert not lines[0].HasField("rank")
    assert texts(tmp_path, rank=1) == ["trains", "dies", "is rank 1 now"]
    assert texts(tmp_path, rank=1, lines=2) == ["dies", "is rank 1 now"]
    assert texts(tmp_path, host="b") == texts(tmp_path, slot=1) == texts(tmp_path, worker_id=2)
    assert texts(tmp_path, host="b", lines=1) == ["is rank 1 now"]
    assert texts(tmp_path, rank=7) == []
    assert texts(tmp_path / "none") == []


def test_long_files_are_read_in_both_directions(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    files.append(ONE, b"".join(lines_of(range(3000))))
    assert (tmp_path / file_name(1)).stat().st_size > 4 * BLOCK_BYTES
    whole = first_words(tmp_path)
    assert whole == [f"line {number}" for number in range(3000)]
    assert first_words(tmp_path, lines=2999) == whole[1:]


def test_a_gap_is_shown_beside_the_lines_of_the_rank_that_has_it(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    files.append(ONE, written_line(time_bytes(1.0), line("before", rank=0)) + missing_line(time_bytes(2.0), 17))
    files.append(ONE, written_line(time_bytes(3.0), line("after", rank=0)))
    files.append(TWO, written_line(time_bytes(2.5), line("other", worker=2, rank=1)))
    gap = "edriver: 17 lines are missing here: they could not be written"
    assert texts(tmp_path, rank=0) == ["before", gap, "after"]
    assert texts(tmp_path, rank=0, lines=2) == [gap, "after"]
    assert texts(tmp_path, rank=1) == ["other"]


def test_files_that_the_user_has_spoiled_are_read_as_far_as_that_goes(tmp_path: Path) -> None:
    (tmp_path / "worker.3.log").write_bytes(b"\0\xff\n\n" + written_line(time_bytes(1.0), line("left")))
    (tmp_path / "worker.x.log").write_bytes(b"mine")
    (tmp_path / "worker.4.log").write_bytes(b"")
    (tmp_path / "worker.5.log").symlink_to("worker.3.log")
    os.mkfifo(tmp_path / "worker.6.log")
    assert texts(tmp_path) == ["left"]
    assert [each.worker_id for each in recorded_output(tmp_path)] == [3]
