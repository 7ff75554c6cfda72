"""Folders of checkpoints: which of them are whole, which is the newest, and which are removed."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import fsspec
import pytest

from edriver.checkpoint_folder.folder import MANIFEST, CheckpointFolder
from edriver.checkpoint_folder.manifest import Manifest, ManifestError
from tests.made_checkpoints import CONTENT, manifest, write


@pytest.fixture(params=["path", "file", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kinds = {"path": str(tmp_path / "a"), "file": f"file://{tmp_path}/a", "memory": f"memory://{uuid.uuid4().hex}"}
    return kinds[request.param]


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(found.name for found in folder.found())


def test_a_folder_that_is_not_there_has_none(location: str) -> None:
    assert CheckpointFolder(location).found() == []
    assert CheckpointFolder(location).newest() is None


def test_the_whole_one_with_the_most_steps_is_the_newest(location: str) -> None:
    folder = CheckpointFolder(location)
    write(folder, 10)
    most = write(folder, 30)
    write(folder, 20)
    write(folder, 40, whole=False)
    newest = folder.newest()
    assert newest is not None
    assert newest.name == most
    assert newest.manifest == manifest(30)
    assert [found.whole for found in folder.found()] == [True, True, True, False]


def test_of_two_with_as_many_steps_the_later_one_is_the_newest(location: str) -> None:
    folder = CheckpointFolder(location)
    write(folder, 10)
    later = write(folder, 10)
    newest = folder.newest()
    assert newest is not None
    assert newest.name == later


@pytest.mark.parametrize("damage", ["shorter", "missing", "no-manifest", "half-a-manifest", "other-format"])
def test_a_torn_one_is_never_the_newest(location: str, damage: str) -> None:
    folder = CheckpointFolder(location)
    sound = write(folder, 10)
    torn = write(folder, 20)
    fs, path = fsspec.core.url_to_fs(folder.place(torn))
    match damage:
        case "shorter":
            fs.pipe_file(f"{path}/data", CONTENT[:-1])
        case "missing":
            fs.rm(f"{path}/data")
        case "no-manifest":
            fs.rm(f"{path}/{MANIFEST}")
        case "half-a-manifest":
            fs.pipe_file(f"{path}/{MANIFEST}", manifest(20).text().encode()[:100])
        case "other-format":
            fs.pipe_file(f"{path}/{MANIFEST}", json.dumps({**manifest(20).as_json(), "format": 2}).encode())
    newest = folder.newest()
    assert newest is not None
    assert newest.name == sound


def test_damage_is_found_by_the_digest(location: str) -> None:
    folder = CheckpointFolder(location)
    name = write(folder, 10)
    (found,) = folder.found()
    assert folder.damage(found) == ""
    fs, path = fsspec.core.url_to_fs(folder.place(name))
    fs.pipe_file(f"{path}/data", CONTENT[::-1])
    (found,) = folder.found()
    assert found.whole
    assert folder.damage(found) == "the content of data has changed since it was written"


def test_old_ones_are_removed_with_what_is_torn_before_them(location: str) -> None:
    folder = CheckpointFolder(location)
    write(folder, 10)
    write(folder, 5, whole=False)
    kept = [write(folder, 20), write(folder, 30)]
    begun = write(folder, 40, whole=False)
    folder.prune(2)
    assert names(folder) == [*kept, begun]


def test_one_that_cannot_be_removed_keeps_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(str(tmp_path))
    foreign = write(folder, 10)
    write(folder, 20)
    kept = write(folder, 30)
    remove = folder.remove

    def refused(name: str) -> None:
        if name == foreign:
            raise PermissionError(1, "Operation not permitted", name)
        remove(name)

    monkeypatch.setattr(folder, "remove", refused)
    with pytest.raises(PermissionError, match=foreign):
        folder.prune(1)
    assert names(folder) == [foreign, kept]


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    sound = write(folder, 10)
    (tmp_path / "checkpoint-000002").mkdir()
    os.mkfifo(tmp_path / "checkpoint-000002" / MANIFEST)
    assert [(found.name, found.trouble) for found in folder.found()] == [
        (sound, ""),
        ("checkpoint-000002", "its manifest is not a regular file"),
    ]


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_file_is_damage(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    name = write(folder, 10)
    (tmp_path / name / "data").unlink()
    os.mkfifo(tmp_path / name / "data")
    about = json.loads((tmp_path / name / MANIFEST).read_text())
    about["files"]["data"]["bytes"] = 0  # as long as a pipe is
    (tmp_path / name / MANIFEST).write_text(json.dumps(about))
    (found,) = folder.found()
    assert folder.damage(found) == "data is not a file"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_lies_in_the_place_of_a_note_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    target, note = tmp_path / "target", tmp_path / "c" / "note"
    target.write_bytes(b"mine")
    note.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(note)
    else:
        note.symlink_to(target)
    folder = CheckpointFolder(str(note.parent))
    assert folder.read_note("note") == b""
    with pytest.raises(OSError, match="note"):
        folder.rewrite_note("note", b"others")
    assert target.read_bytes() == b"mine"


def test_those_with_the_most_steps_stay_and_the_one_that_was_written_last(location: str) -> None:
    folder = CheckpointFolder(location)
    most = write(folder, 30)
    write(folder, 10)
    latest = write(folder, 20)
    folder.prune(1)
    assert names(folder) == [most, latest]


def test_one_whose_content_is_damaged_counts_no_more(location: str) -> None:
    folder = CheckpointFolder(location)
    sound, damaged = write(folder, 10), write(folder, 20)
    folder.condemn(damaged)
    newest = folder.newest()
    assert newest is not None
    assert newest.name == sound
    assert damaged in names(folder)


def test_a_name_is_not_used_again_while_it_is_there(location: str) -> None:
    folder = CheckpointFolder(location)
    first, second = write(folder, 10, whole=False), write(folder, 10, whole=False)
    folder.remove(first)
    assert folder.begin() > second


def test_a_manifest_reads_what_it_writes() -> None:
    assert Manifest.of(manifest(7).text()) == manifest(7)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a-list"),
        pytest.param("{}", id="no-format"),
        pytest.param(json.dumps({**manifest(1).as_json(), "steps": "many"}), id="no-number"),
        pytest.param(
            json.dumps({**manifest(1).as_json(), "files": {"../x": {"bytes": 1, "sha256": ""}}}), id="a-file-elsewhere"
        ),
    ],
)
def test_other_texts_are_no_manifests(text: str) -> None:
    with pytest.raises(ManifestError):
        Manifest.of(text)
