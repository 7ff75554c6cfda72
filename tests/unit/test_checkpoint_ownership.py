"""Who owns a folder of checkpoints: one living run, and within it rank 0 of the newest round."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.ownership import (
    LEASE,
    LOOK_PERIOD,
    UNREADABLE,
    FolderInUseError,
    FolderOwner,
    Ownership,
    RoundOverError,
    owner_of,
)
from edriver.model.ids import RoundId
from edriver.system.proc_stat import process_name, this_machine

FIRST = RoundId(1, 1)
ENDED = "1 1"  # no process that lives was started then
TOKENS = iter(range(10**9))


def member(run_id: str, machine: str = "here x y", process: str = "", agent: str = "") -> FolderOwner:
    return FolderOwner(
        run_id, FIRST, "a", machine, process or process_name(os.getpid()), agent, f"token {next(TOKENS)}"
    )


class Claimant:
    """A process with its claim; its time passes only while it watches another one's file.

    Args:
        location: of the folder.
        me: the process.
        meanwhile: called at each look but the first.
    """

    def __init__(self, location: str, me: FolderOwner, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.waited = 0.0
        self.folder = CheckpointFolder(location)
        self._meanwhile = meanwhile
        self.claim = Ownership(self.folder, me, lambda: self.waited, self._sleep, period=3600.0)

    def _sleep(self, seconds: float) -> None:
        self.waited += seconds
        self._meanwhile()


@pytest.fixture(params=["path", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "c") if request.param == "path" else f"memory://{uuid.uuid4().hex}"


def owner(location: str) -> str:
    number, found = owner_of(CheckpointFolder(location))
    return found.run_id if number else ""


def test_the_run_that_comes_second_is_refused_by_the_name_of_the_first(location: str) -> None:
    Claimant(location, member("first")).claim.claim(FIRST)
    second = Claimant(location, member("second"))
    named = rf"folder {location} is in use by another run: run first \(rank 0 of round 1\.1, pid {os.getpid()} on a\)"
    for refused in (second.claim.look, lambda: second.claim.claim(RoundId(9, 9))):
        with pytest.raises(FolderInUseError, match=named):
            refused()
    assert second.waited == 0.0
    assert owner(location) == "first"


@pytest.mark.parametrize("process", ["ended", "another"])
def test_an_owner_on_this_machine_that_has_ended_is_replaced_at_once(location: str, process: str) -> None:
    """Also if another process has its number now."""
    ended = subprocess.run([sys.executable, "-S", "-c", "import os; print(os.getpid())"], stdout=-1, check=True)
    name = f"{int(ended.stdout)} 1" if process == "ended" else f"{os.getpid()} 1"
    Claimant(location, member("first", process=name)).claim.claim(FIRST)
    second = Claimant(location, member("second"))
    second.claim.claim(FIRST)
    assert second.waited == 0.0
    assert owner(location) == "second"
    assert [name for name in second.folder.names() if name.startswith("owner-")] == ["owner-000002.json"]


def test_a_run_whose_rank_0_was_killed_has_its_folder_until_its_agent_has_ended(location: str) -> None:
    Claimant(location, member("first", process=ENDED, agent=process_name(os.getpid()))).claim.claim(FIRST)
    with pytest.raises(FolderInUseError, match="run first"):
        Claimant(location, member("second")).claim.look()


def test_an_owner_on_another_machine_that_renews_its_file_is_left_alone(location: str) -> None:
    first = Claimant(location, member("first", "there x y", ENDED))
    first.claim.claim(FIRST)
    second = Claimant(location, member("second"), meanwhile=first.claim._renew)
    with pytest.raises(FolderInUseError, match="run first"):
        second.claim.look()
    assert second.waited == 2 * LOOK_PERIOD


def test_an_owner_on_another_machine_that_is_silent_for_a_lease_is_replaced(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    Claimant(location, member("first", "there x y")).claim.claim(FIRST)
    second = Claimant(location, member("second"))
    second.claim.look()
    assert second.waited == LEASE
    assert caplog.text.count("was last used by run first (rank 0 of round 1.1, pid ") == 1
    assert "waiting for up to 15 s" in caplog.text
    second.claim.claim(FIRST)  # which waits no more
    assert second.waited == LEASE
    assert owner(location) == "second"


def test_a_file_that_had_been_cached_here_is_no_renewal(location: str) -> None:
    first = Claimant(location, member("first", "there x y"))
    first.claim.claim(FIRST)
    renewals = iter([first.claim._renew])
    second = Claimant(location, member("second"), meanwhile=lambda: next(renewals, lambda: None)())
    second.claim.claim(FIRST)
    assert second.waited == LOOK_PERIOD + LEASE


def test_one_that_begins_to_renew_again_after_the_look_is_left_alone(location: str) -> None:
    first = Claimant(location, member("first", "there x y"))
    first.claim.claim(FIRST)
    second = Claimant(location, member("second"))
    second.claim.look()
    first.claim._renew()
    second._meanwhile = first.claim._renew
    with pytest.raises(FolderInUseError):
        second.claim.claim(FIRST)
    assert owner(location) == "first"


def test_one_that_was_stopped_finds_that_the_folder_is_not_its_own_any_more(location: str) -> None:
    first = Claimant(location, member("first", "there x y"))
    first.claim.claim(FIRST)
    first.claim.check(FIRST)
    second = Claimant(location, member("second"))
    second.claim.claim(FIRST)
    first.claim._renew()  # it continues
    with pytest.raises(FolderInUseError, match=r"another run has taken over .* run second"):
        first.claim.check(FIRST)
    with pytest.raises(FolderInUseError, match=r"another run has taken over .* run second"):
        first.claim.claim(RoundId(1, 2))
    assert first.waited == 0.0
    first.claim.release()
    second.claim.check(FIRST)
    assert owner(location) == "second"


@pytest.mark.parametrize("later", [RoundId(1, 2), RoundId(2, 1)], ids=["round", "resumed"])
def test_rank_0_of_a_later_round_of_the_same_run_has_it_at_once(location: str, later: RoundId) -> None:
    old = Claimant(location, member("run", "there x y"))
    old.claim.claim(FIRST)
    new = Claimant(location, member("run"))
    new.claim.look()
    new.claim.claim(later)
    assert new.waited == 0.0
    for over in (old.claim.check, old.claim.claim):
        with pytest.raises(RoundOverError, match=f"rank 0 of round {later} writes the checkpoints in .* now"):
            over(FIRST)
    new.claim.check(later)


def test_two_members_of_one_round_may_write(location: str) -> None:
    """Which the lowest ranks of several hosts do when the run no longer has a driver."""
    one, two = Claimant(location, member("run", "there x y")), Claimant(location, member("run"))
    one.claim.claim(FIRST)
    two.claim.claim(FIRST)
    one.claim.check(FIRST)
    two.claim.check(FIRST)


def test_a_rank_0_that_stays_says_so_in_the_file_that_it_has(location: str) -> None:
    one = Claimant(location, member("run"))
    one.claim.claim(FIRST)
    one.claim.claim(RoundId(1, 2))
    assert owner_of(one.folder)[0] == 1
    with pytest.raises(RoundOverError):
        Claimant(location, member("run")).claim.claim(FIRST)


class Rivalled(CheckpointFolder):
    """A folder in which another run is faster, once."""

    rival: Ownership

    def create_note(self, name: str, content: bytes) -> bool:
        if (rival := self.__dict__.pop("rival", None)) is not None:
            rival.claim(FIRST)
        return super().create_note(name, content)


@pytest.mark.parametrize("left", [0, 1], ids=["new", "left-by-another"])
def test_of_two_that_claim_it_at_once_one_gets_it(location: str, left: int) -> None:
    for _ in range(left):
        Claimant(location, member("ended", process=ENDED)).claim.claim(FIRST)
    folder = Rivalled(location)
    folder.rival = Claimant(location, member("first")).claim
    with pytest.raises(FolderInUseError, match="run first"):
        Ownership(folder, member("second"), period=3600.0).claim(FIRST)
    assert owner(location) == "first"


def test_one_that_ends_well_lets_it_go(location: str) -> None:
    one = Claimant(location, member("first"))
    one.claim.claim(FIRST)
    one.claim.release()
    assert owner(location) == ""
    Claimant(location, member("second")).claim.claim(FIRST)
    assert owner(location) == "second"


def test_a_folder_that_was_removed_is_no_other_runs(tmp_path: Path) -> None:
    one = Claimant(str(tmp_path / "c"), member("first"))
    one.claim.claim(FIRST)
    one.folder.remove_note("owner-000001.json")
    one.claim._renew()
    assert owner(str(tmp_path / "c")) == ""
    one.claim.check(FIRST)
    one.claim.claim(FIRST)
    assert owner(str(tmp_path / "c")) == "first"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "round_id": [1]}'])
def test_a_file_that_cannot_be_read_is_waited_for(location: str, text: bytes) -> None:
    assert FolderOwner.of(text) == UNREADABLE
    CheckpointFolder(location).create_note("owner-000004.json", text)
    second = Claimant(location, member("second"))
    second.claim.claim(FIRST)
    assert second.waited == LEASE
    assert owner_of(second.folder)[0] == 5


def test_the_name_of_an_owner_is_printed_as_it_is_read() -> None:
    hostile = member("x\n\x1b[2Jedriver: done", process="7\x1b 1")
    assert "\x1b" not in str(FolderOwner.of(hostile.text().encode()))
    assert "\n" not in str(FolderOwner.of(hostile.text().encode()))


def test_a_process_is_a_member_of_the_run_that_its_environment_names() -> None:
    environ = {"EDRIVER_RUN_ID": "5d2f01aa", "EDRIVER_HOST": "b", "EDRIVER_AGENT_PID": str(os.getppid())}
    me = FolderOwner.this_process(environ)
    assert (me.run_id, me.host, me.machine) == ("5d2f01aa", "b", this_machine())
    assert (me.process, me.agent) == (process_name(os.getpid()), process_name(os.getppid()))
    assert me.lives_here
    assert FolderOwner.of(me.text().encode()) == me
    alone: dict[str, Any] = {}
    assert FolderOwner.this_process(alone).is_same_run(FolderOwner.this_process(alone))
    assert not FolderOwner.this_process(alone).is_same_run(me)
    assert str(FolderOwner.this_process(alone)).startswith(f"a script without a driver (pid {os.getpid()} on ")


class Watched(CheckpointFolder):
    """A folder whose notes are seen to be rewritten."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.rewritten = threading.Event()

    def rewrite_note(self, name: str, content: bytes) -> None:
        super().rewrite_note(name, content)
        self.rewritten.set()


def test_it_renews_its_file_by_itself(tmp_path: Path) -> None:
    folder = Watched(str(tmp_path / "c"))
    claim = Ownership(folder, member("first"), period=0.001)
    claim.claim(FIRST)
    assert folder.rewritten.wait(60)
    claim.release()


def test_the_next_round_is_noted_beside_the_caller(tmp_path: Path) -> None:
    folder = Watched(str(tmp_path / "c"))
    claim = Ownership(folder, member("first"), period=3600.0)
    claim.claim(FIRST)
    claim.claim_soon(RoundId(1, 7))
    assert folder.rewritten.wait(60)
    assert owner_of(folder)[1].round_id == RoundId(1, 7)
    claim.release()
