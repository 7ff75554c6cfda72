"""Which run `edriver logs` is about, and how it prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edriver.client import RunError, WorkerLine
from edriver.commands import logs
from edriver.commands.logs import Screen
from tests.made_runs import MadeRun


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the records of three runs, the latest of which has no output."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(logs, "living_runs", dict)
    root = tmp_path / "edriver"
    for number, run_id in enumerate(("aaaaaaaa", "bbbbbbbb", "cccccccc")):
        run = MadeRun(run_id, seconds=30.0, began=1000.0 * number)
        run.write(root)
        if run_id != "cccccccc":
            run.write_output(root, (0, f"zero of {run_id}"), (1, f"one of {run_id}"), (0, "last"))
    return root


def test_of_a_run_that_has_ended_its_records_answer(root: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert logs.logs(["--run", "aaaaaaaa"]) == 0
    assert capfdbinary.readouterr() == (
        b"[0]<stdout>:zero of aaaaaaaa\n[1]<stdout>:one of aaaaaaaa\n[0]<stdout>:last\n",
        b"",
    )
    assert logs.logs(["1", "-f", "--run", str(root / "bbbbbbbb")]) == 0
    assert capfdbinary.readouterr() == (b"one of bbbbbbbb\n", b"")
    assert logs.logs(["node-000:0", "--tail", "1", "--run", "aaaaaaaa"]) == 0
    assert capfdbinary.readouterr() == (b"last\n", b"")
    with pytest.raises(RunError, match="records of run cccccccc do not have the output of its workers"):
        logs.logs(["--run", "cccccccc"])
    with pytest.raises(RunError, match="no run dddddddd is in progress, and there are no records of a run 'dddddddd'"):
        logs.logs(["--run", "dddddddd"])


def test_without_a_run_it_is_the_one_in_progress_or_the_latest(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for path in (root / "cccccccc").iterdir():
        path.unlink()
    assert logs.logs(["0"]) == 0
    said = b"edriver: no run is in progress; this is your latest, bbbbbbbb\n"
    assert capfdbinary.readouterr() == (b"zero of bbbbbbbb\nlast\n", said)
    monkeypatch.setattr(logs, "living_runs", lambda: {"eeeeeeee": Path("socket")})
    flags = logs.parser().parse_args([])
    assert logs.ended_run(flags) is None
    assert logs.ended_run(logs.parser().parse_args(["--run", "eeeeeeee"])) is None
    assert logs.ended_run(logs.parser().parse_args(["--run", "aaaaaaaa"])) is not None
    assert logs.ended_run(logs.parser().parse_args(["--run", "aaaaaaaa", "--credentials", "file"])) is None


def test_into_a_pipe_a_bar_is_printed_now_and_then_and_at_the_end() -> None:
    reader, writer = os.pipe()
    now = [0.0]
    with os.fdopen(writer, "wb") as file:
        screen = Screen(file, lambda: now[0], alone=True)
        for second in range(15):
            now[0] = float(second)
            screen.put(WorkerLine(worker_id=1, text=b"%d %%" % second, unfinished=True))
        screen.close()
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"0 %\n10 %\n14 %\n"
