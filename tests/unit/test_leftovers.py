"""Which folders a new run takes for leftovers of dead ones, and which processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edriver.system.leftovers import FOLDER_PREFIX, LOCK_NAME, hold, remove_leftovers
from tests.needs import ROOT_USER, require


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / f"{FOLDER_PREFIX}1234-abcd"
    (made / "agent-1").mkdir(parents=True)
    return made


def locked(folder: Path) -> None:
    (folder / LOCK_NAME).touch()


def test_a_folder_whose_lock_is_not_held_is_removed(folder: Path) -> None:
    locked(folder)
    locked(folder / "agent-1")
    (leftover,) = remove_leftovers([folder.parent], {})
    assert (leftover.folder, leftover.processes) == (folder, 0)
    assert not folder.exists()


@pytest.mark.parametrize("held", ["", "agent-1"], ids=["by its driver", "by an agent whose driver is gone"])
def test_what_is_held_stays(folder: Path, held: str) -> None:
    locked(folder)
    lock = hold(folder / held)
    assert remove_leftovers([folder.parent], {}) == []
    os.close(lock)
    assert len(remove_leftovers([folder.parent], {})) == 1


def unlocked(folder: Path) -> None:
    """Another's folder, of the same name by chance."""


def linked(folder: Path) -> None:
    locked(folder)
    folder.with_name("there").symlink_to(folder.rename(folder.with_name("elsewhere")))
    folder.symlink_to(folder.with_name("elsewhere"))


def of_another_user(folder: Path) -> None:
    require(ROOT_USER)
    locked(folder)
    os.chown(folder, 65534, 65534)


@pytest.mark.parametrize("made", [unlocked, linked, of_another_user])
def test_what_is_not_known_to_be_ours_stays(folder: Path, made: Callable[[Path], None]) -> None:
    made(folder)
    assert remove_leftovers([folder.parent], {}) == []
    assert folder.exists()


@pytest.mark.parametrize("mark", ["EDRIVER_RUN_FOLDER={0}", "EDRIVER_READY={0}/agent-1/ready.sock"])
def test_one_that_belongs_to_a_dead_run_itself_leaves_it_alone(folder: Path, mark: str) -> None:
    locked(folder)
    name, _, value = mark.format(folder).partition("=")
    assert remove_leftovers([folder.parent], {name: value}) == []


def test_processes_are_known_by_their_mark(folder: Path) -> None:
    locked(folder)
    command = [sys.executable, "-I", "-S", "-c", "input()"]
    theirs = {"EDRIVER_READY": f"{folder}/agent-1/ready.sock"}
    others = {"EDRIVER_READY": f"{folder}5/agent-1/ready.sock", "EDRIVER_RUN_FOLDER": f"{folder}5"}
    with (
        subprocess.Popen(command, env=theirs, stdin=subprocess.PIPE) as killed,
        subprocess.Popen(command, env=others, stdin=subprocess.PIPE) as spared,
    ):
        (leftover,) = remove_leftovers([folder.parent], {})
        assert (leftover.processes, killed.wait()) == (1, -9)
        assert spared.poll() is None
