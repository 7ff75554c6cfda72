"""The error file of torch's @record, in every state in which a script may leave it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

from edriver.agent.workers.error_file import MAX_ERROR_FILE_BYTES, read, recorded_error
from edriver.text.wire_text import MAX_TEXT_LENGTH
from edriver.wire.conversion import epoch_seconds


def of_record(**more: Any) -> dict[str, Any]:
    extra = {"py_callstack": "Traceback ...\nValueError: bad", "timestamp": "100", **more}
    return {"message": {"message": "ValueError: bad", "extraInfo": extra}}


@pytest.mark.parametrize(
    ("content", "text", "time"),
    [
        pytest.param(of_record(), "Traceback ...\nValueError: bad", 100.25, id="as-record-writes-it"),
        pytest.param(of_record(timestamp=99), "Traceback ...\nValueError: bad", 100.25, id="written-a-second-later"),
        pytest.param(of_record(timestamp="90"), "Traceback ...\nValueError: bad", 90.0, id="changed-much-later"),
        pytest.param(of_record(timestamp="101"), "Traceback ...\nValueError: bad", 101.0, id="in-its-future"),
        pytest.param(of_record(py_callstack=""), "ValueError: bad", 100.25, id="no-traceback"),
        pytest.param(of_record(py_callstack=7), "ValueError: bad", 100.25, id="a-traceback-of-another-kind"),
        pytest.param({"message": "killed", "timestamp": 100}, "killed", 100.25, id="a-string"),
        pytest.param({"message": "killed"}, "killed", 0.0, id="a-string-without-a-time"),
        pytest.param({"message": {"message": "bad"}}, "bad", 0.0, id="no-details"),
        pytest.param({"message": {"message": "bad", "extraInfo": []}}, "bad", 0.0, id="details-of-another-kind"),
        pytest.param(of_record(timestamp=1e300), "Traceback ...\nValueError: bad", 0.0, id="beyond-all-time"),
        pytest.param(of_record(timestamp="nan"), "Traceback ...\nValueError: bad", 0.0, id="not-a-number"),
        pytest.param(of_record(timestamp="inf"), "Traceback ...\nValueError: bad", 0.0, id="infinite"),
        pytest.param(of_record(timestamp=[]), "Traceback ...\nValueError: bad", 0.0, id="no-time-at-all"),
        pytest.param({"message": "a \ud800"}, "a \\ud800", 0.0, id="no-unicode"),
    ],
)
def test_what_a_file_says(content: object, text: str, time: float) -> None:
    recorded = recorded_error(json.dumps(content).encode(), changed=100.25)
    assert recorded is not None
    assert (recorded.traceback, epoch_seconds(recorded.record_time)) == (text, time)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(json.dumps(of_record()).encode()[:-3], id="torn"),
        pytest.param(b"\xff\xfe\x00", id="no-text"),
        pytest.param(b"[1, 2]", id="a-list"),
        pytest.param(b"{}", id="nothing-in-it"),
        pytest.param(b'{"message": {}}', id="no-message"),
        pytest.param(b'{"message": " "}', id="a-blank"),
        pytest.param(b'{"message": 7}', id="a-number"),
        pytest.param(b"[" * 100_000, id="too-deep"),
        pytest.param(b'{"message": "a", "timestamp": ' + b"9" * 5000 + b"}", id="too-many-digits"),
    ],
)
def test_what_cannot_be_understood_is_left_alone(data: bytes) -> None:
    assert recorded_error(data, changed=0.0) is None


def test_a_long_traceback_is_cut_to_what_a_message_carries() -> None:
    recorded = recorded_error(json.dumps(of_record(py_callstack="x" * 200_000 + "end")).encode(), changed=0.0)
    assert recorded is not None
    assert len(recorded.traceback) <= MAX_TEXT_LENGTH
    assert recorded.traceback.endswith("end")


def test_torchs_own_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    try:
        raise ValueError("bad batch")
    except ValueError as error:
        ErrorHandler().record_exception(error)
    recorded = recorded_error(*read(path))
    assert recorded is not None
    assert recorded.traceback.startswith("Traceback (most recent call last):")
    assert recorded.traceback.strip().endswith("ValueError: bad batch")
    assert epoch_seconds(recorded.record_time) == pytest.approx(path.stat().st_mtime, abs=1e-5)


def test_what_is_no_file_to_be_read_is_left_alone(tmp_path: Path) -> None:
    huge, pipe, link, folder = (tmp_path / name for name in ("huge", "pipe", "link", "folder"))
    huge.write_bytes(b" " * (MAX_ERROR_FILE_BYTES + 1))
    os.mkfifo(pipe)  # nothing writes to it: reading would wait for ever
    link.symlink_to(huge)
    folder.mkdir()
    for path in (huge, pipe, link, folder, tmp_path / "none"):
        assert read(path) == (b"", 0.0)
