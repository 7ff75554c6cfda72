"""`edriver checkpoint inspect`: what it prints of whole, torn and damaged checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.manifest import CheckpointEntry
from edriver.checkpoint_folder.ownership import FolderOwner, Ownership
from edriver.cli.subcommands import SUBCOMMANDS
from edriver.commands.checkpoint import checkpoint
from edriver.model.ids import RoundId
from tests.made_checkpoints import manifest, write


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(str(tmp_path))
    for steps, whole in ((10, True), (2000, True), (3000, False)):
        write(made, steps, whole)
    return made


def test_it_lists_all_and_the_entries_of_the_newest_whole_one(folder: CheckpointFolder) -> None:
    lines = checkpoint(["inspect", folder.location]).splitlines()
    assert lines[0] == "checkpoint-000002  step 2,000, 8 bytes, whole"
    assert lines[1].endswith("by run run, version 1.1:5, 2 workers")
    assert lines[2:] == [
        "  with edriver 0.1 and torch 2.13",
        "    model.weight  float32  2 x 3, 24 bytes",
        "    epoch         object",
        "checkpoint-000001  step 10, 8 bytes, whole",
        "checkpoint-000003  torn: it has no manifest: it is still being written, or was never completed",
    ]


def test_of_one_that_comes_from_memory_no_version_is_shown_and_of_many_objects_a_few(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    entries = {f"optimizer.{number}.lr": CheckpointEntry("", (), 0) for number in range(100)}
    entries["weight"] = CheckpointEntry("float32", (2,), 8)
    folder.seal(folder.begin(), dataclasses.replace(manifest(5), version="", entries=entries, files={}))
    lines = checkpoint(["inspect", folder.location]).splitlines()
    assert lines[1].endswith("by run run, 2 workers")
    assert lines[3:] == [
        *(f"    optimizer.{number}.lr  object" for number in range(5)),
        "    weight          float32  2, 8 bytes",
        "    and 95 more objects, which --json lists",
    ]


def test_json_has_all_that_is_known(folder: CheckpointFolder) -> None:
    found = json.loads(checkpoint(["inspect", "--json", folder.location]))
    assert [(each["name"][-1], each["whole"]) for each in found] == [("2", True), ("1", True), ("3", False)]
    assert found[0]["manifest"] == manifest(2000).as_json()
    assert found[2]["manifest"] is None
    assert found[2]["trouble"]


def test_verify_reads_the_files(folder: CheckpointFolder) -> None:
    (Path(folder.location) / "checkpoint-000002" / "data").write_bytes(b"ELEMENTS")
    assert "000002  step 2,000, 8 bytes, whole" in checkpoint(["inspect", folder.location])
    assert "torn: the content of data has changed" in checkpoint(["inspect", "--verify", folder.location])


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert checkpoint(["inspect", str(tmp_path)]) == f"there are no checkpoints in {tmp_path}"


def test_it_names_the_owner(folder: CheckpointFolder) -> None:
    claim = Ownership(folder, FolderOwner.this_process({"EDRIVER_RUN_ID": "5d2f01aa", "EDRIVER_HOST": "b"}))
    claim.claim(RoundId(1, 2))
    last = checkpoint(["inspect", folder.location]).splitlines()[-1]
    assert last == f"last used by run 5d2f01aa (rank 0 of round 1.2, pid {os.getpid()} on b)"
    claim.release()


def test_what_cannot_be_read_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert SUBCOMMANDS["checkpoint"].run(["inspect", "nosuch://place"]) == 1
    assert "edriver checkpoint: nosuch://place cannot be read" in capsys.readouterr().err


def test_it_does_without_torch(folder: CheckpointFolder) -> None:
    program = (
        "import sys; from edriver.cli.subcommands import SUBCOMMANDS; "
        f"assert SUBCOMMANDS['checkpoint'].run(['inspect', {folder.location!r}]) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
