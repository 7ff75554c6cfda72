"""Folders that no other account can change: what is taken for one, and what is not."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

import pytest

from edriver.system.private_files import NotOwnError, OwnFolder
from tests.attacks.attackers import OTHER_ACCOUNT
from tests.needs import ROOT_USER, require


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "its own"
    made.mkdir(mode=0o755)
    (made / "file").touch(mode=0o644)
    return made


def check(folder: Path, *, or_roots: bool = False) -> None:
    with OwnFolder(folder, or_roots=or_roots) as own:
        own.check_all()


def test_what_is_this_users_and_closed_to_others_is_taken(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    check(folder)
    check(folder.parent / "link")
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o1777])
@pytest.mark.parametrize("name", ["", "file"])
def test_what_others_can_write_is_refused_with_the_way_out(folder: Path, name: str, mode: int) -> None:
    path = folder / name
    path.chmod(mode)
    with pytest.raises(NotOwnError) as refused:
        check(folder)
    whom = "every account" if mode & stat.S_IWOTH else "its group"
    assert str(refused.value).startswith(f"{path} can be changed by {whom} (its mode is {mode:04o}), ")
    assert str(refused.value).endswith(f"chmod -R go-w {shlex.quote(str(folder))}")
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["", "file"])
def test_what_belongs_to_another_account_is_refused_by_its_owner(folder: Path, name: str) -> None:
    require(ROOT_USER)
    os.chown(folder / name, OTHER_ACCOUNT, OTHER_ACCOUNT)
    with pytest.raises(NotOwnError, match=rf"^{folder / name} belongs to user ID {OTHER_ACCOUNT}, .* \(cp -r\)$"):
        check(folder, or_roots=True)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_regular_file_is_refused_and_not_opened(folder: Path, kind: str) -> None:
    path = folder / "\x1b[2J"
    if kind == "link":
        path.symlink_to(folder / "file")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with OwnFolder(folder) as own:
        for act in (lambda: own.check([path.name]), lambda: own.open(path.name), own.check_all):
            with pytest.raises(NotOwnError, match=re.escape(r"own/\x1b[2J' is not a regular file")):
                act()


def test_a_link_is_refused_where_none_may_be(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(NotOwnError, match="link is a symbolic link"):
        OwnFolder(folder.parent / "link", follow=False)


def test_a_folder_that_takes_its_place_changes_nothing(folder: Path) -> None:
    with OwnFolder(folder) as own, (folder / "file").open("rb"):
        own.check_opened(["file", "missing"])
        folder.rename(folder.parent / "away")
        folder.mkdir()
        assert [path.name for path in own.pinned.iterdir()] == ["file"]
        os.close(own.open("other"))
    assert list(folder.iterdir()) == []


def test_a_file_that_was_opened_in_a_folder_in_its_place_is_found_out(folder: Path) -> None:
    with OwnFolder(folder) as own:
        folder.rename(folder.parent / "away")
        folder.mkdir()
        (folder / "file").touch()
        with (folder / "file").open("rb"), pytest.raises(NotOwnError, match="was replaced with another folder"):
            own.check_opened(["file"])


def test_where_a_file_system_gives_all_files_one_owner_those_are_this_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a share of NFS that squashes accounts, or of SMB."""
    real = os.fstat, os.stat

    def squashed(found: os.stat_result) -> os.stat_result:
        mode, *rest = found
        return os.stat_result([stat.S_IFMT(mode) | 0o777, *rest[:3], OTHER_ACCOUNT, OTHER_ACCOUNT, *rest[5:]])

    monkeypatch.setattr(os, "fstat", lambda *args, **more: squashed(real[0](*args, **more)))
    monkeypatch.setattr(os, "stat", lambda *args, **more: squashed(real[1](*args, **more)))
    check(folder)
