"""How a command finds a run of this user by its name or its ID."""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edriver.cli.resuming.resume import journal_of
from edriver.client import RunError, here
from edriver.commands.export import parser as export_parser
from edriver.commands.report import parser as report_parser
from edriver.dashboard.known_runs import KnownRuns
from edriver.driver.journal.journal import JournalError
from edriver.system.runs import SOCKET_NAME, keep_name


class Machine:
    """A machine with runs in progress, and records of others, in temporary folders."""

    def __init__(self, temporary: Path, state: Path) -> None:
        self._temporary = temporary
        self._root = state / "edriver"
        self._sockets: list[socket.socket] = []

    def runs(self, run_id: str, name: str = "") -> None:
        """A run is in progress."""
        folder = self._temporary / f"edriver-{run_id}-1"
        folder.mkdir(mode=0o700)
        listening = socket.socket(socket.AF_UNIX)
        self._sockets.append(listening)
        listening.bind(str(folder / SOCKET_NAME))
        listening.listen()
        if name:
            keep_name(folder, name)

    def has_records(self, run_id: str, name: str, *, resumable: bool = False) -> None:
        """A run has left records."""
        folder = self._root / run_id
        folder.mkdir(parents=True)
        about = {"run_id": run_id, "name": name, "start_time": "2026-01-01T00:00:00Z"}
        (folder / "run.json").write_text(json.dumps(about))
        if resumable:
            (folder / "journal.sqlite3").touch()

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as folder:  # sockets want short paths
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr("edriver.system.runs._SHORT", folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        with closing(Machine(Path(folder), tmp_path)) as made:
            yield made


def test_a_run_is_found_by_its_name_by_its_id_and_alone(machine: Machine) -> None:
    machine.runs("0000000a", "trial-a")
    assert here().run_id == here("trial-a").run_id == here("0000000a").run_id == "0000000a"
    machine.runs("0000000b")
    machine.runs("0000000c", "trial-a")
    assert here("0000000b").run_id == "0000000b"
    with pytest.raises(RunError, match=r"^several runs have the name 'trial-a': choose one with --run: ") as refused:
        here("trial-a")
    listed = str(refused.value).partition("--run: ")[2]
    assert sorted(listed.split(", ")) == ["0000000a (trial-a)", "0000000c (trial-a)"]


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        pytest.param(None, "there are several runs: choose one with --run: ", id="none given"),
        pytest.param("trail-a", "you have no run 'trail-a' here: did you mean trial-a?", id="mistyped"),
        pytest.param("0000001a", "you have no run '0000001a' here: did you mean 0000000a?", id="a mistyped ID"),
        pytest.param("xyz", "you have no run 'xyz' here, only ", id="nothing alike"),
        pytest.param("an old one", "run an old one has ended: edriver report 'an old one' shows how", id="ended"),
        pytest.param(
            "a killed one",
            "run a killed one has no driver now: if none is taking it over, edriver resume 'a killed one' does",
            id="its driver was killed",
        ),
    ],
)
def test_what_is_said_where_no_run_is_meant(machine: Machine, named: str | None, sentence: str) -> None:
    machine.runs("0000000a", "trial-a")
    machine.runs("ffffffff", "b")
    machine.has_records("12345678", "an old one")
    machine.has_records("23456789", "a killed one", resumable=True)
    with pytest.raises(RunError) as refused:
        here(named)
    assert str(refused.value).startswith(sentence)


def test_a_run_is_resumed_by_its_name(machine: Machine) -> None:
    machine.has_records("0000000a", "trial-a", resumable=True)
    machine.has_records("0000000b", "nightly", resumable=True)
    machine.has_records("0000000c", "weekly")
    for named in ("nightly", "0000000b"):
        assert journal_of(named, os.environ).parent.name == "0000000b"
    for wrong, sentence in (
        (None, r"say which of 0000000a \(trial-a\), 0000000b \(nightly\)$"),
        ("nihgtly", r"no run 'nihgtly' can be resumed: did you mean nightly\?$"),
        ("weekly", "no run 'weekly' can be resumed: it has ended, or its records are elsewhere"),
    ):
        with pytest.raises(JournalError, match=sentence):
            journal_of(wrong, os.environ)


def test_the_page_opens_with_the_latest_run_of_a_name(machine: Machine) -> None:
    machine.has_records("0000000a", "trial-a")
    machine.has_records("0000000b", "trial-b")
    assert KnownRuns().id_of("trial-b") == "0000000b"
    assert KnownRuns().id_of("0000000a") == "0000000a"
    assert KnownRuns().id_of("trial-c") == "trial-c"


@pytest.mark.parametrize(("parser", "words"), [(report_parser, []), (export_parser, ["csv"])], ids=["report", "export"])
def test_commands_that_read_records_take_the_run_in_both_ways(
    parser: Callable[[], argparse.ArgumentParser], words: list[str]
) -> None:
    assert parser().parse_args([*words, "trial-a"]).run == "trial-a"
    assert parser().parse_args([*words, "--run", "trial-a"]).run == "trial-a"
    for wrong in ([], ["trial-a", "--run", "trial-b"]):
        with pytest.raises(SystemExit):
            parser().parse_args([*words, *wrong])
