"""Resuming on another machine that has the records on a network file system, whose locks do not reach it: sshfs.

Two mounts share one folder; each has its own SFTP server and cache. Each driver runs in its own UTS namespace, so it
has its own host name.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.needs import FUSE, ROOT_USER, SFTP_SERVER, SSHFS
from tests.process.resuming import TRAIN, Resumed, assert_every_step_once, environ_of, kill, wait_for_steps
from tests.process.running import BOUND, Run, running

pytestmark = pytest.mark.needs(ROOT_USER, FUSE, SSHFS)


@contextmanager
def mounted(folder: Path, place: Path) -> Iterator[Path]:
    """A mount of a folder, by a server that sshfs starts in the place of ssh."""
    server = place.with_suffix(".server")
    server.write_text(f"#!/bin/sh\nexec {SFTP_SERVER}\n")
    server.chmod(0o755)
    place.mkdir()
    subprocess.run(["sshfs", "-o", f"ssh_command={server}", f"machine:{folder}", place], check=True, timeout=BOUND)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, timeout=BOUND)


def on_machine(name: str) -> list[str]:
    """What runs a command on a machine of this name."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]


@contextmanager
def resumed(run: Run, folder: Path, mount: Path, machine: str) -> Iterator[Resumed]:
    """The next driver of a run, on another machine; it is killed at the end, also where it is stopped."""
    state = mount / "state"
    where = str(state / "edriver" / run.id)
    driver = Resumed(run, folder, where, through=on_machine(machine), environ={"XDG_STATE_HOME": str(state)})
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.end()


@pytest.mark.long
def test_a_driver_that_was_killed_and_one_that_was_stopped(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with ExitStack() as stack:
        here, there = (stack.enter_context(mounted(shared, tmp_path / name)) for name in ("here", "there"))
        environ = environ_of(tmp_path, XDG_STATE_HOME=str(here / "state"), EPOCHS="40000")
        run = stack.enter_context(running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ))
        run.line("rank 1 passed step 5")
        early = stack.enter_context(resumed(run, tmp_path, there, "early"))
        assert early.end() == 1, early.text
        assert "the driver of this run lives on " in early.text
        kill(run)
        second = stack.enter_context(resumed(run, tmp_path, there, "second"))
        second.line("another driver has taken over, number 2 of this run")
        second.line("rank 1 passed step")
        second.process.send_signal(signal.SIGSTOP)
        third = stack.enter_context(resumed(run, tmp_path, here, "third"))
        third.line("another driver has taken over, number 3 of this run")
        second.process.send_signal(signal.SIGCONT)
        assert second.end() == 75
        assert "this driver leaves run" in second.text
        assert "a driver on third has it now" in second.text
        wait_for_steps(tmp_path / "reports", 20)
        third.process.send_signal(signal.SIGINT)
        assert third.end() == 130, third.text
        assert run.gone(), run.left_behind()
    assert_every_step_once(tmp_path / "reports")
