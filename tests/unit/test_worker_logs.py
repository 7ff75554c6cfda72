"""torchrun's flags about output: how they are read, and where each worker's streams go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from edriver.agent.settings import AgentSettings
from edriver.agent.worker_settings import WorkerSettings
from edriver.agent.workers.capture import Capture
from edriver.agent.workers.log_files import TO_DRIVER, Destination, LogFiles, worker_files
from edriver.agent.workers.pipes import Pipes
from edriver.model.worker_logs import StreamChoice, Streams, WorkerLogs, local_ranks
from edriver.v1 import agent_pb2
from edriver.wire.orders import worker_logs_message


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        pytest.param("0", StreamChoice(Streams.NONE), id="none"),
        pytest.param("1", StreamChoice(Streams.STDOUT), id="stdout"),
        pytest.param("2", StreamChoice(Streams.STDERR), id="stderr"),
        pytest.param("3", StreamChoice(Streams.BOTH), id="both"),
        pytest.param("0:1", StreamChoice(by_local_rank={0: Streams.STDOUT}), id="one-rank"),
        pytest.param("0:3,11:2", StreamChoice(by_local_rank={0: Streams.BOTH, 11: Streams.STDERR}), id="two-ranks"),
    ],
)
def test_a_choice_is_read_as_torchrun_reads_it(text: str, choice: StreamChoice) -> None:
    assert StreamChoice.of(text) == choice


@pytest.mark.parametrize("text", ["", "4", "-1", "01", "out", "0:4", "0:", ":3", "0:1,", "0:1,2", "x:1", "0 :1", "²:1"])
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither 0"):
        StreamChoice.of(text)


def test_a_local_rank_that_no_host_has_is_refused() -> None:
    with pytest.raises(ValueError, match="local rank 4096: a host has at most 4096 workers"):
        StreamChoice.of("4096:1")


def test_a_filter_of_local_ranks() -> None:
    assert local_ranks("0,2") == (0, 2)
    for text in ("", "0,", "a", "-1"):
        with pytest.raises(ValueError, match="is not a list of local ranks"):
            local_ranks(text)


def log_files(logs: WorkerLogs) -> LogFiles:
    return LogFiles(Path("/logs/run_a"), worker_logs_message(logs))


@pytest.mark.parametrize(
    ("redirects", "tee", "shown", "expected"),
    [
        pytest.param("0", "0", (), [(False, True), (False, True)], id="nothing"),
        pytest.param("3", "0", (), [(True, False), (True, False)], id="redirect"),
        pytest.param("1", "0", (), [(True, False), (False, True)], id="redirect-stdout"),
        pytest.param("0", "2", (), [(False, True), (True, True)], id="tee-stderr"),
        pytest.param("3", "1", (), [(True, True), (True, False)], id="redirect-and-tee"),
        pytest.param("1:3", "0", (), [(True, False), (True, False)], id="redirect-this-rank"),
        pytest.param("0:3", "0", (), [(False, True), (False, True)], id="redirect-another-rank"),
        pytest.param("0", "3", (0,), [(True, False), (True, False)], id="tee-and-filtered-out"),
        pytest.param("0", "0", (0,), [(False, False), (False, False)], id="filtered-out"),
        pytest.param("0", "3", (0, 1), [(True, True), (True, True)], id="filtered-in"),
    ],
)
def test_where_the_streams_of_local_rank_1_go(
    redirects: str, tee: str, shown: tuple[int, ...], expected: list[tuple[bool, bool]]
) -> None:
    logs = WorkerLogs("/logs", StreamChoice.of(redirects), StreamChoice.of(tee), shown)
    found = log_files(logs).destinations(2, 1)
    assert [(each.file is not None, each.shown) for each in found] == expected


def test_files_lie_as_torchruns_do() -> None:
    stdout, stderr = log_files(WorkerLogs(tee=StreamChoice(Streams.BOTH))).destinations(2, 1)
    assert stdout == Destination(Path("/logs/run_a/attempt_2/1/stdout.log"), append=True)
    assert stderr == Destination(Path("/logs/run_a/attempt_2/1/stderr.log"), append=True)


def worker_settings(logs: agent_pb2.WorkerLogs) -> WorkerSettings:
    settings = AgentSettings(run_id="run", host="a", agent_id=1, address="127.0.0.1", folder=Path("/s"))
    made = WorkerSettings(settings, {})
    for _ in range(2):  # a stream to the driver that breaks is opened again
        made.take(agent_pb2.Welcome(restart_mode=agent_pb2.RestartMode(logs=logs)))
    return made


def test_each_run_and_host_has_a_folder_of_its_own() -> None:
    logs = worker_settings(agent_pb2.WorkerLogs(folder="/logs")).logs
    assert logs is not None
    assert logs.folder == Path("/logs/run_a")


def test_without_a_folder_one_is_made_once_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logs = worker_settings(agent_pb2.WorkerLogs()).logs
    (made,) = tmp_path.iterdir()
    assert logs is not None
    assert logs.folder == made / "run_a"
    assert made.stat().st_mode & 0o077 == 0
    assert str(made) in caplog.text


class Captured:
    """What was captured of a process that writes to two pipes."""

    def __init__(self, destinations: tuple[Destination, Destination]) -> None:
        self.lines: list[bytes] = []
        self.unwritten: list[tuple[Path, str]] = []
        self.heard = 0
        self.changed = asyncio.Event()
        (out, self.stdout), (err, self.stderr) = os.pipe(), os.pipe()
        for fd in (out, err):
            os.set_blocking(fd, False)
        self.capture = Capture(
            1,
            0,
            out,
            err,
            Pipes(),
            lambda line: self.lines.append(line.text),
            self._hear,
            lambda file, reason: self.unwritten.append((file, reason)),
            destinations,
        )

    def _hear(self) -> None:
        self.heard += 1
        self.changed.set()

    def end(self) -> str:
        for fd in (self.stdout, self.stderr):
            os.close(fd)
        return self.capture.finish()


def captured(steps: Sequence[tuple[bytes, tuple[Destination, Destination]]]) -> tuple[list[bytes], str, int]:
    """Lead stdout to each of these in turn, with what is written there; the lines shown, the tail, all lines."""

    async def capture() -> tuple[list[bytes], str, int]:
        process = Captured(TO_DRIVER)
        for text, destinations in steps:
            process.capture.lead_to(destinations)
            process.changed.clear()
            os.write(process.stdout, text)
            await process.changed.wait()
        return process.lines, process.end(), process.heard

    return asyncio.run(asyncio.wait_for(capture(), 60))


def test_what_is_redirected_is_not_shown_and_still_among_the_last_lines(tmp_path: Path) -> None:
    file = tmp_path / "attempt_0" / "0" / "stdout.log"
    hidden = (Destination(file, shown=False, append=True), Destination(shown=False))
    lines, tail, heard = captured([(b"boots\n", TO_DRIVER), (b"trains\n", hidden)])
    assert (lines, tail, heard) == ([b"boots"], "boots\ntrains", 2)
    assert file.read_text() == "trains\n"
    assert file.stat().st_mode & 0o077 == 0


def test_a_resize_within_an_attempt_goes_on_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "stdout.log"
    teed = (Destination(file, append=True), Destination())
    lines, _, _ = captured([(b"one\n", teed)])
    captured([(b"two\n", teed)])
    assert (lines, file.read_text()) == ([b"one"], "one\ntwo\n")


def test_output_whose_file_cannot_be_written_is_shown(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    hidden = (Destination(tmp_path / "file" / "stdout.log", shown=False), Destination())
    assert captured([(b"trains\n", hidden)])[0] == [b"trains"]


@pytest.mark.parametrize(
    ("file", "reason"), [("/dev/null/stdout.log", "Not a directory"), ("/dev/full", "No space left on device")]
)
def test_a_file_that_cannot_be_written_is_reported_once(file: str, reason: str) -> None:
    async def reported() -> list[tuple[Path, str]]:
        process = Captured((Destination(Path(file), append=True), Destination()))
        for _ in range(2):
            process.changed.clear()
            os.write(process.stdout, b"trains\n")
            await process.changed.wait()
        process.end()
        return process.unwritten

    assert asyncio.run(asyncio.wait_for(reported(), 60)) == [(Path(file), reason)]


def test_the_files_of_output_filename_have_the_worker_in_their_names(tmp_path: Path) -> None:
    captured([(b"trains\n", worker_files(tmp_path / "a.0", 7))])
    assert (tmp_path / "a.0" / "worker.7.stdout").read_text() == "trains\n"
    assert (tmp_path / "a.0" / "worker.7.stderr").read_text() == ""
