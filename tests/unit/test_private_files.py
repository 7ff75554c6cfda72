"""Files that only their user can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edriver.system.private_files import open_private


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def loose() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize(
    ("content", "flags", "mode"),
    [
        pytest.param(None, os.O_APPEND, 0o600, id="new"),
        pytest.param("", os.O_APPEND, 0o600, id="empty"),
        pytest.param("x", os.O_TRUNC, 0o600, id="emptied"),
        pytest.param("x", os.O_APPEND, 0o666, id="one-that-its-owner-has-opened-to-others"),
    ],
)
def test_it_is_private_from_its_first_byte_on(tmp_path: Path, content: str | None, flags: int, mode: int) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    os.close(open_private(path, flags))
    assert mode_of(path) == mode


def test_what_is_no_file_stays_as_it_is() -> None:
    before = mode_of(Path(os.devnull))
    os.close(open_private(Path(os.devnull), os.O_TRUNC))
    assert mode_of(Path(os.devnull)) == before
