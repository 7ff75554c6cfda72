"""Files that only their user can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edriver.system.private_files import make_private, open_private
from tests.attacks.attackers import OTHER_ACCOUNT
from tests.needs import ROOT_USER, require


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


def of_another_account(path: Path) -> Path:
    require(ROOT_USER)
    os.chown(path, OTHER_ACCOUNT, OTHER_ACCOUNT, follow_symlinks=False)
    return path


def link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def file(path: Path) -> Path:
    path.write_text("x")
    return path


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_TRUNC])
@pytest.mark.parametrize("kind", ["link", "link-to-a-link", "dangling-link", "file", "pipe"])
def test_what_another_account_has_laid_there_is_not_opened(tmp_path: Path, kind: str, flags: int) -> None:
    precious = file(tmp_path / "precious")
    path = tmp_path / "path"
    if kind == "link-to-a-link":
        link(path, of_another_account(link(tmp_path / "second", precious)))
    else:
        made = {
            "link": lambda: link(path, precious),
            "dangling-link": lambda: link(path, tmp_path / "fresh"),
            "file": lambda: file(path),
            "pipe": lambda: pipe(path),
        }
        of_another_account(made[kind]())
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if kind == "pipe" else -1
    words = "belongs to" if kind in ("file", "pipe") else "is a symbolic link of"
    with pytest.raises(PermissionError, match=f"it {words} user ID {OTHER_ACCOUNT}: remove it"):
        open_private(path, flags)
    assert precious.read_text() == "x"
    assert not (tmp_path / "fresh").exists()
    if kind == "file":
        assert path.read_text() == "x"
    if kind == "pipe":
        os.close(reader)


def test_ones_own_links_are_followed(tmp_path: Path) -> None:
    target = file(tmp_path / "target")
    link(tmp_path / "first", Path("second"))
    link(tmp_path / "second", Path("..", tmp_path.name, "target"))
    os.close(open_private(tmp_path / "first", os.O_TRUNC))
    assert target.read_text() == ""
    link(tmp_path / "fresh-link", Path("fresh"))
    os.close(open_private(tmp_path / "fresh-link"))
    assert mode_of(tmp_path / "fresh") == 0o600
    link(tmp_path / "circle", Path("circle"))
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_private(tmp_path / "circle")


def test_a_pipe_without_a_reader_is_said_and_one_with_a_reader_is_written(tmp_path: Path) -> None:
    path = pipe(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe that no process reads from"):
        open_private(path, os.O_APPEND)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(open_private(path, os.O_APPEND), "wb", buffering=0) as writer:
        assert os.get_blocking(writer.fileno())
        writer.write(b"line")
    assert os.read(reader, 10) == b"line"
    os.close(reader)


def test_what_has_no_path_of_its_own_is_opened_by_its_descriptor() -> None:
    """As a shell's >(command), and /dev/stdout."""
    reader, writer = os.pipe()
    with os.fdopen(open_private(Path(f"/dev/fd/{writer}"), os.O_APPEND), "wb", buffering=0) as file:
        file.write(b"line")
    assert os.read(reader, 10) == b"line"
    assert os.get_blocking(writer)
    os.close(reader)
    os.close(writer)


@pytest.mark.usefixtures("loose")
def test_folders_that_are_made_are_for_this_user_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    make_private(tmp_path / "there" / "a" / "b")
    assert [mode_of(tmp_path / name) for name in ("there", "there/a", "there/a/b")] == [0o755, 0o700, 0o700]
    make_private(tmp_path / "there" / "a" / "b")
    file(tmp_path / "file")
    for name in ("file", "file/below"):
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            make_private(tmp_path / name)
