"""Line ends and control characters in names, of files and answers of others: no command prints a line of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.cli.complaint import complain
from edriver.cli.subcommands import SUBCOMMANDS
from edriver.client import Run
from edriver.commands import status as status_command
from edriver.dashboard import known_runs
from edriver.rendezvous import command as rendezvous_command
from edriver.v1 import rendezvous_pb2
from tests.made_checkpoints import manifest, write

FORGED = "edriver: done\n0bad0bad  forged  done"
NAME = f"x\n{FORGED}\r\x1b[2J\t\u2028{FORGED}"


def assert_not_forged(text: str) -> None:
    lines = text.splitlines()
    assert any("forged" in line for line in lines), text
    assert not [line for line in lines if line.startswith(("edriver: done", "0bad0bad", "forged"))], text
    assert "\x1b" not in text
    assert "\r" not in text


def test_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(known_runs, "living_runs", dict)
    folder = tmp_path / "00000001"
    folder.mkdir()
    about = {"run_id": NAME, "start_time": "2026-01-01T00:00:00Z", "command": [NAME], "name": NAME}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "events.jsonl").touch()
    assert SUBCOMMANDS["runs"].run(["--records", str(tmp_path)]) == 0
    found = capsys.readouterr().out
    assert_not_forged(found)
    assert len(found.splitlines()) == 2


def test_of_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(CheckpointFolder(str(tmp_path)), 10, whole=True)
    (file,) = tmp_path.glob("*/manifest.json")
    found = manifest(10).as_json()
    found["run_id"] = found["torch"] = NAME
    found["entries"] = dict.fromkeys([NAME], next(iter(found["entries"].values())))
    file.write_text(json.dumps(found))
    assert SUBCOMMANDS["checkpoint"].run(["inspect", str(tmp_path)]) == 0
    assert_not_forged(capsys.readouterr().out)


def test_of_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(run_id="1", name=NAME, command=[NAME])
    run.activity.text = NAME
    run.hosts.add(name=NAME)
    run.warnings.add().cause.text = NAME

    class Answering:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Answering:
            return self

        def __exit__(self, *_: object) -> None: ...
        def status(self) -> Run:
            return run

    monkeypatch.setattr(status_command, "client_of", Answering)
    monkeypatch.setattr(status_command, "Client", Answering)
    monkeypatch.setattr(status_command, "here", str)
    for living in ([], ["1", "2"]):
        monkeypatch.setattr(status_command, "living_runs", living.copy)
        assert SUBCOMMANDS["status"].run([]) == 0
        assert_not_forged(capsys.readouterr().out)


def test_of_a_rendezvous() -> None:
    found = rendezvous_pb2.ListRendezvousResponse()
    state = rendezvous_pb2.StateChange()
    state.nodes.add(node=rendezvous_pb2.RendezvousNode(address=NAME), participant=True)
    found.rendezvous.add(run_id=NAME, state=state)
    assert_not_forged(rendezvous_command.text_of(found, 0.0))


def test_of_files_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"edriver: the journal {NAME} cannot be read")
    assert_not_forged(capsys.readouterr().err)
