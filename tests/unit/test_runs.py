"""Which folders and sockets are taken for runs of this user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edriver.system import runs
from tests import needs

NOBODY = 65534


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runs' folders are; the path is short enough for sockets, and all may enter."""
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(runs, "_SHORT", folder)
        yield Path(folder)


@pytest.fixture
def listening() -> Iterator[Callable[[Path], None]]:
    """Has a socket of this process listen in a folder."""
    opened: list[socket.socket] = []

    def listen(folder: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / runs.SOCKET_NAME))
        listener.listen()
        opened.append(listener)

    yield listen
    for listener in opened:
        listener.close()


def a_folder(place: Path, run_id: str) -> Path:
    folder = place / f"edriver-{run_id}-00000000"
    folder.mkdir(mode=0o700)
    return folder


def test_a_run_is_found_while_its_driver_listens(place: Path, listening: Callable[[Path], None]) -> None:
    folder = a_folder(place, "aa")
    a_folder(place, "bb")
    listening(folder)
    assert runs.living_runs() == {"aa": folder / runs.SOCKET_NAME}


def test_a_link_is_no_run(place: Path, listening: Callable[[Path], None]) -> None:
    folder = place / "elsewhere"
    folder.mkdir(mode=0o700)
    listening(folder)
    (place / "edriver-aa-00000000").symlink_to(folder)
    assert runs.living_runs() == {}


def test_a_folder_that_others_may_enter_is_no_run(place: Path, listening: Callable[[Path], None]) -> None:
    folder = a_folder(place, "aa")
    listening(folder)
    folder.chmod(0o711)
    assert runs.living_runs() == {}


LISTEN = """
import os, socket, sys
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.needs(needs.ROOT_USER)
@pytest.mark.parametrize("whose_folder", [NOBODY, 0], ids=["its-own-folder", "a-folder-of-this-user"])
def test_another_account_cannot_pose_as_a_run(place: Path, whose_folder: int) -> None:
    folder = a_folder(place, "aa")
    os.chown(folder, NOBODY, NOBODY)
    command = [sys.executable, "-c", LISTEN, str(folder / runs.SOCKET_NAME), str(NOBODY)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"listening\n"
        os.chown(folder, whose_folder, whose_folder)
        assert runs.living_runs() == {}
        assert other.stdin is not None
        other.stdin.close()
